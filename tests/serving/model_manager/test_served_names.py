"""ServedNames of models with settings of their own, models that stay, and the order of swaps."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.chat import ChatRequest, Message
from woolly.errors import StoreError
from woolly.llm.presets import load_of
from woolly.serving import ModelManager, Settings
from woolly.serving.errors import ApiError
from woolly.serving.generation.request_defaults import with_defaults
from woolly.serving.model_manager import manager as manager_module
from woolly.serving.model_manager.served_names import ServedNames
from woolly.serving.settings.configuration import read_settings

NAMES = """
[models.plain]
from = "one"
temperature = 0.0
[models.cold]
from = "one"
system = "Be brief."
reasoning = "off"
[models.long]
from = "one"
ctx = 96
kv_type = "q8_0"
[models.longer]
from = "one"
kv_type = "q8_0"
ctx = 96
temperature = 1.0
pin = true
keep_alive = 60
"""


@pytest.fixture
def opened(monkeypatch):
    """The models that were opened: their file and context."""
    found = []

    def open_model(path, options, real=manager_module.open_model):
        found.append((path.stem, options.ctx, options.kv_type))
        return real(path, options)

    monkeypatch.setattr(manager_module, "open_model", open_model)
    return found


def manager(folder, text="", **settings):
    file = folder.parent / "woolly.toml"
    file.write_text(text)
    return ModelManager(Settings(models_dir=folder, ctx_size=64, threads=1, names_file=file, **settings))


def tell(models, story):
    async def whole():
        try:
            await story()
        finally:
            await models.close()

    asyncio.run(whole())


async def until(condition):
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came")


def test_names_with_the_same_load_settings_share_one_loaded_model(folder, opened):
    models = manager(folder, NAMES, models_max=2)

    async def story():
        for name in ("plain", "cold", "one", "long", "longer", "LONG"):
            async with models.use(name) as slot:
                assert slot.model.ctx == (96 if "ong" in name.lower() else 64)
        shown = {info.name: info for info in await models.list()}
        assert list(shown) == ["one", "two", "plain", "cold", "long", "longer"]
        assert {name for name, info in shown.items() if info.loaded} == set(shown) - {"two"}
        assert shown["longer"].base == "one" and shown["longer"].context_length == 96
        await models.unload("longer")
        assert [slot.info.name for slot in models.loaded_models] == ["one"]

    tell(models, story)
    assert opened == [("one", 64, None), ("one", 96, "q8_0")]


def test_pinned_model_is_never_replaced_and_keeps_its_time(folder, opened):
    models = manager(folder, NAMES, keep_alive=0.001)

    async def story():
        async with models.use("long") as slot:  # `longer` has the same loading settings, and is pinned
            assert slot.keep_alive.is_pinned and slot.keep_alive.seconds == 60
        for name in ("one", "two") * 50:
            async with models.use(name):
                pass
        slot.last_used -= 3600
        await models.unload_idle()
        assert "long" in [one.info.name for one in models.loaded_models]

    tell(models, story)
    assert [path for path, *_ in opened] == ["one", *("one", "two") * 50]


def test_name_may_keep_its_model_longer_than_the_server(folder, opened):
    models = manager(folder, '[models.kept]\nfrom = "one"\nkeep_alive = 60\n', keep_alive=0.001, models_max=2)

    async def story():
        async with models.use("kept"), models.use("two"):
            pass
        await until(lambda: models.ready("two") is None or models.keep_alive_of("two") == 0.001)
        for slot in models.loaded_models:
            slot.last_used -= 30
        await models.unload_idle()
        assert [slot.info.name for slot in models.loaded_models] == ["one"]
        models.loaded_models[0].last_used -= 60
        await models.unload_idle()
        assert models.loaded_models == ()

    tell(models, story)


def test_requests_for_one_model_are_grouped(folder, opened):
    write_tiny(TINY["qwen3"], folder / "three.gguf")
    models = manager(folder)

    async def ask(info):
        async with models.use(info) as slot:
            assert slot.info.name == info.name and slot.llm is not None
            await asyncio.sleep(0)

    async def story():
        # Found before: no thread decides which request comes first.
        found = [await models.get(name) for name in ("one", "two", "one", "one", "three", "one")]
        await asyncio.gather(*map(ask, found))

    tell(models, story)
    assert [path for path, *_ in opened] == ["one", "two", "three"]


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_loaded_model_takes_requests_before_a_swap_but_not_forever(folder, opened, seconds):
    models = manager(folder, swap_wait=seconds)

    async def other():
        async with models.use("two"):
            pass

    async def story():
        async with models.use("one"):
            swap = asyncio.create_task(other())
            if seconds:
                await until(lambda: any(one.needs for one in models.loaded_models if one.info.name == "two"))
                async with models.use("one"):
                    assert models.ready("one") is not None
            else:
                await until(lambda: models.ready("one") is None)
        await swap
        assert models.ready("two") is not None

    tell(models, story)
    assert [path for path, *_ in opened] == ["one", "two"]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("temperature = 1.0", 'names no model; add a line such as from = "smollm2"'),
        ('from = "one"\nkv_type = 8', "kv_type of [x] is 8; expected a string"),
        ('from = "one"\ndraft_tokens = 0', "draft_tokens of [x] is 0; expected at least 1"),
        ('from = "one"\nbackend = "tpu"', "backend of [x] is 'tpu'; choose one of: auto"),
        ('from = "one"\nlora = 5', "lora of [x] is 5; expected a file or a list of files"),
        ('from = "one"\npin = 1', "pin is 1; expected true or false"),
        ('from = "one"\nkeep_alive = "5m"', "keep_alive is '5m'; expected seconds"),
        ('from = "one"\nreasoning = "high"', "reasoning is 'high'; choose one of: auto, on, off"),
        ('from = "one"\ntemprature = 1', "temprature"),
    ],
)
def test_invalid_table_is_rejected_before_the_server_starts(folder, table, says):
    with pytest.raises(StoreError, match=re.escape(says)):
        manager(folder, f"[models.x]\n{table}\n")


def test_name_of_a_missing_model_is_hidden_and_rejected(folder):
    models = manager(folder, '[models.x]\nfrom = "none"\n')

    async def story():
        assert [info.name for info in await models.list()] == ["one", "two"]
        with pytest.raises(ApiError, match="unknown model 'none'"):
            await models.get("x")

    tell(models, story)


def test_adapter_paths_are_relative_to_the_settings_file(tmp_path):
    file = tmp_path / "woolly.toml"
    file.write_text('[models.x]\nfrom = "one"\nlora = ["a.gguf", "/b.gguf"]\n[serve]\nport = 1\n')
    assert read_settings({"config": file}, {}).names_file == file
    (preset,) = ServedNames(tmp_path, file).all()
    assert load_of(preset) == {"adapters": (str(tmp_path / "a.gguf"), "/b.gguf")}


def test_name_may_set_thinking(folder):
    models = manager(folder, NAMES)
    template = SimpleNamespace(reads=lambda name: name == "enable_thinking")
    llm = SimpleNamespace(template=template, preset=None)
    chat = ChatRequest(messages=(Message("user", "Hi"),))

    async def story():
        named = with_defaults(chat, llm, Settings(), await models.find_derived("cold"))
        assert named.reasoning.effort == "none" and named.messages[0].content == "Be brief."
        assert with_defaults(chat, llm, Settings(reasoning="on")).variables == {"enable_thinking": True}
        plain = with_defaults(chat, llm, Settings(), await models.find_derived("plain"))
        assert plain == with_defaults(chat, llm, Settings())

    asyncio.run(story())


def test_name_may_be_an_alias_of_another(folder, opened):
    more = (
        '[models.brief]\nfrom = "Long:latest"\nsystem = "Be brief."\n[models.a]\nfrom = "b"\n[models.b]\nfrom = "a"\n'
    )
    models = manager(folder, NAMES + more)

    async def story():
        assert "brief" in [info.name for info in await models.list()]
        async with models.use("brief") as slot:
            assert (slot.info.name, slot.info.base, slot.model.ctx) == ("long", "one", 96)
        made = await models.find_derived("brief")
        assert (made.base, made.system, made.sampling["kv_type"]) == ("one", "Be brief.", "q8_0")
        with pytest.raises(ApiError, match="unknown model"):
            await models.get("a")

    tell(models, story)


def test_name_with_an_invalid_setting_is_dropped_and_its_model_answers(folder, opened, caplog):
    wrong = '[soon]\nfrom = "one"\nkeep_alive = "5m"\n[odd]\nfrom = "one"\nkv_type = 8\n'
    (folder / "presets.toml").write_text(f'{wrong}[kept]\nfrom = "one"\nkeep_alive = 60\n')
    models = manager(folder)

    async def story():
        async with models.use("one") as slot:
            assert slot.keep_alive.seconds == 60
        for name, says in (("soon", "keep_alive is '5m'"), ("odd", "kv_type of")):
            with pytest.raises(ApiError, match=says):
                await models.get(name)

    tell(models, story)
    assert next(one.reason for one in caplog.records if one.message == "name left out").endswith("no limit")
