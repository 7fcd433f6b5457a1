"""Models: loaded on demand, shared, swapped and unloaded."""

import asyncio
import contextlib
import inspect

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly import SamplingParams
from woolly.engine.loading import memory_estimate
from woolly.llm import LLM
from woolly.serving import GenerationRequest, Generator, ModelManager, Settings
from woolly.serving.errors import ApiError
from woolly.serving.model_manager import manager as models_module
from woolly.serving.observability.metrics import Stats
from woolly.serving.settings.options import ModelOptions
from woolly.store import WHEEL_MODELS


def test_model_options_match_llm():
    taken = [p for p in inspect.signature(LLM).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert vars(ModelOptions()) == {p.name: p.default for p in taken} | {
        "adapters": (),
        "control_vectors": (),
        "metadata": (),
        "stages": (),
    }


def manager(folder, **settings):
    given = {"swap_wait": 0.0, **settings}  # test_names.py has the order of swaps
    return ModelManager(Settings(models_dir=folder, ctx_size=128, threads=1, **given))


def test_concurrent_requests_load_a_model_once_and_share_it(folder, monkeypatch):
    opened = []

    def open_model(path, settings, real=models_module.open_model):
        opened.append(path.name)
        return real(path, settings)

    monkeypatch.setattr(models_module, "open_model", open_model)

    async def story():
        models = manager(folder)
        generator = Generator(Settings(models_dir=folder), models, Stats())

        async def ask():
            params = SamplingParams(max_tokens=4, temperature=0)
            async with generator.open(GenerationRequest(params, model="one", prompt="sheep")) as running:
                return (await running.completion()).token_ids

        answers = await asyncio.gather(*(ask() for _ in range(8)))
        assert len(set(answers)) == 1
        assert (await models.get("loaded")).name == "one"
        await models.close()

    asyncio.run(story())
    assert opened == ["one.gguf"]


def test_least_recently_used_model_is_replaced(folder):
    async def story():
        models = manager(folder)
        assert (await models.load("one")).loaded
        assert (await models.load("two")).loaded
        assert [(m.name, m.state) for m in await models.list()] == [("one", "unloaded"), ("two", "ready")]
        assert not (await models.unload("two")).loaded
        assert models.loaded_models == ()
        with pytest.raises(ApiError, match="no model is loaded"):
            await models.get("current")
        await models.close()

    asyncio.run(story())


def test_log_says_when_a_chat_template_is_assumed(folder, caplog):
    async def story(**settings):
        models = manager(folder, **settings)
        await models.load("one")
        await models.close()
        said = [record for record in caplog.records if record.getMessage() == "chat template assumed"]
        caplog.clear()
        return [(record.model, "/v1/completions" in record.reason) for record in said]

    assert asyncio.run(story()) == [("one", True)]
    assert asyncio.run(story(chat_template="chatml")) == []  # the operator chose it


def test_two_models_stay_if_two_are_allowed(folder):
    async def story():
        models = manager(folder, models_max=2)
        await models.load("one")
        await models.load("two")
        assert [m.loaded for m in await models.list()] == [True, True]
        assert (await models.get(None)).name == "two"
        await models.close()

    asyncio.run(story())


def test_model_whose_probe_fails_is_closed(folder, monkeypatch):
    opened = []

    def broken(llm):
        opened.append(llm)
        raise MemoryError

    async def story():
        models = manager(folder, probe=True)
        with pytest.raises(ApiError) as caught:
            await models.load("one")
        assert caught.value.code == "insufficient_memory"
        assert opened[0].is_closed and models.loaded_models == ()
        await models.close()

    monkeypatch.setattr(LLM, "identity", broken)
    asyncio.run(story())


def test_swap_waits_for_running_answers(folder):
    async def story():
        models = manager(folder)
        async with models.use("one") as slot:
            loading = asyncio.create_task(models.load("two"))
            while slot.state != "unloading":
                await asyncio.sleep(0.01)
            assert not loading.done()
            assert slot.llm is not None
        assert (await loading).loaded
        await models.close()

    asyncio.run(story())


def test_unload_continues_without_its_client(folder):
    async def story():
        models = manager(folder)
        async with models.use("one") as slot:
            asked = asyncio.create_task(models.unload("one"))
            while slot.state != "unloading":
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            again = asyncio.create_task(models.unload("one"))
            await asyncio.sleep(0.01)
            assert not again.done()
        assert (await again).state == "unloaded"
        assert models.loaded_models == ()
        assert (await models.load("one")).loaded
        await models.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_stopping_server_does_not_wait_for_users_of_an_unloading_model(folder):
    async def story():
        models = manager(folder, grace=600)
        async with models.use("one") as slot:
            asked = asyncio.create_task(models.unload("one"))
            while slot.state != "unloading":
                await asyncio.sleep(0.01)
            await models.close()
        await asked

    asyncio.run(asyncio.wait_for(story(), 60))


def test_waiting_too_long_for_a_model_is_a_503_with_retry_after(folder):
    async def story():
        models = manager(folder, load_wait=0.05)
        while not (await models.get("one")).loaded:  # on a busy machine, it takes longer than that as well
            with contextlib.suppress(ApiError):
                await models.load("one")
        async with models.use("one"):
            with pytest.raises(ApiError) as caught:
                await models.load("two")
        assert (caught.value.status, caught.value.code) == (503, "model_loading")
        assert caught.value.retry_after
        await models.close()

    asyncio.run(story())


def test_idle_model_is_unloaded_and_reloaded_on_demand(folder):
    async def story():
        models = manager(folder, keep_alive=0.01)
        await models.load("one")
        async with models.use("one"):
            await asyncio.sleep(0.02)
            await models.unload_idle()
            assert (await models.get("one")).loaded
        await asyncio.sleep(0.02)
        await models.unload_idle()
        assert not (await models.get("one")).loaded
        async with models.use("one") as slot:
            assert slot.model.ctx == 128
        await models.close()

    asyncio.run(story())


def test_too_large_model_is_rejected_with_numbers_and_nothing_is_unloaded(folder, monkeypatch):
    async def story():
        models = manager(folder)
        await models.load("one")
        monkeypatch.setattr(memory_estimate, "available_memory", lambda: -(10**9))
        with pytest.raises(ApiError, match=r"two needs about 0\.\d\d GB .* -0\.\d\d GB are available") as caught:
            await models.load("two")
        assert caught.value.status == 503
        assert (await models.get("loaded")).name == "one"
        await models.close()

    asyncio.run(story())


def test_model_can_be_reloaded_with_its_own_settings(folder):
    async def story():
        models = manager(folder)
        assert (await models.load("one")).context_length == 128
        assert (await models.load("one", config={"ctx_size": 64})).context_length == 64
        for config in ({"host": "0.0.0.0"}, {"ctx_size": "64"}, {"ctx_size": -1}, {"cache_type_k": "q1"}):
            with pytest.raises(ApiError) as caught:
                await models.load("one", config=config)
            assert caught.value.status == 400
        with pytest.warns(UserWarning, match="trained for 512"):
            assert (await models.load("two", config={"ctx_size": 1000})).context_length == 1000
        await models.close()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["load", "use"])
def test_context_beyond_training_gives_a_warning_with_the_model_name(folder, how):
    async def story():
        models = ModelManager(Settings(models_dir=folder, ctx_size=1000, threads=1))
        if how == "load":
            await models.load("two")
        else:
            async with models.use("two"):
                pass
        assert (await models.get("two")).context_length == 1000
        await models.close()

    with pytest.warns(UserWarning, match="ctx is 1000, but two was trained for 512") as reported:
        asyncio.run(story())
    assert len([one for one in reported if "trained" in str(one.message)]) == 1


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ({"threads": 100_000}, 422),
        ({"kv_tokens": 10**15}, 503),
        ({"chat_template": "{{ messages }}"}, 400),
    ],
)
@pytest.mark.parametrize("name", ["one", "two"])
def test_rejected_settings_keep_the_loaded_model(folder, name, config, status):
    async def story():
        models = manager(folder)
        await models.load("one")
        (slot,) = models.loaded_models
        with pytest.raises(ApiError) as caught:
            await models.load(name, config=config)
        assert caught.value.status == status
        assert models.loaded_models == (slot,) and slot.state == "ready"
        await models.close()

    asyncio.run(story())


def test_files_with_one_name_are_distinguished(folder):
    for at in ("a", "b"):
        (folder / at).mkdir()
        for file in ("one.gguf", "three.gguf"):
            write_tiny(TINY["qwen3"], folder / at / file)

    async def story():
        models = manager(folder)
        assert (await models.load("one", path="one.gguf")).architecture == "llama"
        assert (await models.load("three", path="a/three.gguf")).loaded
        assert (await models.load("three", path="a/three.gguf")).loaded
        for name, path in (("one", "a/one.gguf"), ("three", "b/three.gguf")):
            with pytest.raises(ApiError, match=f"the name '{name}' is used by another file") as caught:
                await models.load(name, path=path)
            assert caught.value.status == 409
        await models.close()

    asyncio.run(story())


def test_only_model_answers_without_a_name(folder):
    async def story():
        models = manager(folder)
        with pytest.raises(ApiError, match="missing model name; available: one, two"):
            await models.get(None)
        (folder / "two.gguf").unlink()
        assert (await models.get(None)).name == "one"

    asyncio.run(story())


def test_reference_backend_answers_the_same(folder):
    async def ask(**settings):
        models = manager(folder, **settings)
        generator = Generator(Settings(), models, Stats())
        params = SamplingParams(max_tokens=6, temperature=0)
        async with generator.open(GenerationRequest(params, model="one", prompt="sheep")) as running:
            answer = (await running.completion()).token_ids
        await models.close()
        return answer

    assert asyncio.run(ask()) == asyncio.run(ask(optimized_inference=False))


def test_current_model_prefers_loaded_and_loading_ones_over_unloading_ones(folder):
    async def story():
        models = manager(folder, models_max=2)
        await models.load("one")
        async with models.use("one") as slot:
            going = asyncio.create_task(models.unload("one"))
            while slot.state != "unloading":
                await asyncio.sleep(0.01)
            coming = asyncio.create_task(models.load("two"))
            while len(models.loaded_models) < 2:
                await asyncio.sleep(0.01)
            slot.last_used = float("inf")
            assert (await models.get(None)).name == "two"
        await asyncio.gather(going, coming)
        await models.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_memory_of_an_unloading_model_counts_as_free_and_is_waited_for(folder, monkeypatch):
    async def story():
        models = manager(folder, models_max=2)
        await models.load("one")
        opened = []

        def open_model(path, settings, real=models_module.open_model):
            opened.append([slot.info.name for slot in models.loaded_models])
            return real(path, settings)

        monkeypatch.setattr(models_module, "open_model", open_model)
        async with models.use("one") as slot:
            needs = slot.needs.total
            monkeypatch.setattr(
                memory_estimate, "available_memory", lambda: needs // 2
            )  # enough only beside that of one
            going = asyncio.create_task(models.unload("one"))
            while slot.state != "unloading":
                await asyncio.sleep(0.01)
            coming = asyncio.create_task(models.load("two"))
            # Until it waits for that of one: if it looked for memory later, there would be too little.
            while {one.info.name: one.stage for one in models.loaded_models}.get("two") != "freeing":
                await asyncio.sleep(0.01)
            assert opened == []
        assert (await coming).loaded
        await going
        assert opened == [["two"]]
        await models.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_model_is_found_by_every_listed_name_and_errors_list_them_too(folder, app_with):
    catalogued = WHEEL_MODELS["smollm2"].file_name
    write_tiny(TINY["llama"], folder / catalogued)
    with app_with(models_dir=folder, model=str(folder / "one.gguf"), alias=("mine",), strict_models=True) as api:
        listed = {one["id"]: one["aliases"] for one in api.get("/v1/models").json()["data"]}
        stem = catalogued.removesuffix(".gguf")
        assert listed == {
            "mine": ["one", "one.gguf"],
            "smollm2": ["smollm2-135m", stem, catalogued],
            "two": ["two.gguf"],
        }
        assert {one["name"]: one["aliases"] for one in api.get("/api/v1/models").json()} == listed
        for name, aliases in listed.items():
            for alias in (name, *aliases, *(other.upper() for other in aliases)):
                assert api.get(f"/v1/models/{alias}").json()["id"] == name
                reply = api.post("/v1/completions", json={"model": alias, "prompt": "a", "max_tokens": 1})
                assert reply.json()["model"] == name
        reported = api.post("/v1/completions", json={"model": "nobody", "prompt": "a"})
        assert reported.status_code == 404
        for each in (alias for name, aliases in listed.items() for alias in (name, *aliases)):
            assert each in reported.json()["error"]["message"]
        loaded = api.post("/api/v1/models/one/load", json={"path": "one.gguf"}).json()
        assert loaded["model_info"]["name"] == "mine"
