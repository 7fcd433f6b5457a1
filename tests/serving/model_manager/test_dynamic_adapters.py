"""Adapters that are added to models of a server: clients that leave, models that load, names, memory."""

import asyncio
import threading

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.engine.test_adapters import lora, write_lora
from woolly import LLM
from woolly.engine.loading import memory_estimate
from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.serving import ModelManager, Settings
from woolly.serving.errors import ApiError

WAIT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("added")
    for name in ("tiny", "other"):
        write_tiny(TINY["llama"], folder / f"{name}.gguf")
    for seed, name in enumerate(("french", "second")):
        write_lora(folder / f"{name}.gguf", lora(seed))
    return folder


def story(folder, tell, **settings):
    """Runs `tell(models)`, which the settings make."""

    async def whole():
        models = ModelManager(Settings(models_dir=folder, model=str(folder / "tiny.gguf"), threads=1, **settings))
        try:
            await tell(models)
        finally:
            await models.close()

    asyncio.run(whole())


class Held:
    """A method of LLM that waits until it is let go; `begun` is set when it is called."""

    def __init__(self, monkeypatch, method):
        self.begun, self.goes_on = threading.Event(), threading.Event()
        plain = getattr(LLM, method)

        def held(*given):
            self.begun.set()
            assert self.goes_on.wait(WAIT)
            return plain(*given)

        monkeypatch.setattr(LLM, method, held)

    async def leaves(self, work):
        """Starts work, and cancels it when the method is called, as for a client that leaves."""
        task = asyncio.ensure_future(work)
        assert await asyncio.to_thread(self.begun.wait, WAIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("method", ["add_adapter", "remove_adapter"])
def test_change_completes_if_its_client_leaves(folder, monkeypatch, method):
    async def tell(models):
        tiny = await models.get("tiny")
        if method == "remove_adapter":
            await models.dynamic_adapters.add(tiny, "french", "french.gguf")
        held = Held(monkeypatch, method)
        is_added = method == "add_adapter"
        change = (
            models.dynamic_adapters.add(tiny, "french", "french.gguf")
            if is_added
            else models.dynamic_adapters.remove("french")
        )
        await held.leaves(change)
        slot = models.ready("tiny")
        assert slot.users == 1  # nobody unloads it meanwhile
        assert (await models.find_derived("french") is None) == is_added  # the name goes after the adapter
        held.goes_on.set()
        await models.dynamic_adapters.close()
        assert slot.users == 0 and slot.llm.adapters == (("french",) if is_added else ())
        assert (await models.find_derived("french") is not None) == is_added

    story(folder, tell)


def test_adapter_is_removed_from_a_loading_model(folder, monkeypatch):
    async def tell(models):
        await models.dynamic_adapters.add(await models.get("tiny"), "french", "french.gguf")
        await models.unload("tiny")
        held = Held(monkeypatch, "identity")
        loading = asyncio.ensure_future(models.load("tiny"))
        assert await asyncio.to_thread(held.begun.wait, WAIT)
        removing = asyncio.ensure_future(models.dynamic_adapters.remove("french"))
        await asyncio.sleep(0)
        held.goes_on.set()
        assert await removing == "tiny" and (await loading).name == "tiny"
        assert models.ready("tiny").llm.adapters == () and await models.find_derived("french") is None
        with pytest.raises(ApiError, match="unknown adapter 'french'; known: none"):
            await models.dynamic_adapters.remove("french")

    story(folder, tell, probe=True)


def test_adapter_is_removed_from_an_unloaded_model(folder):
    async def tell(models):
        await models.dynamic_adapters.add(await models.get("tiny"), "french", "french.gguf")
        await models.unload("tiny")
        assert await models.dynamic_adapters.remove("french") == "tiny" and not models.loaded_models
        await models.load("tiny")
        assert models.ready("tiny").llm.adapters == ()

    story(folder, tell)


def test_adapter_name_must_not_conflict(folder, monkeypatch):
    async def tell(models):
        tiny = await models.get("tiny")
        for name in ("", ":latest", "tiny", "Other", "other:latest", "other.gguf", "loaded", "Current"):
            with pytest.raises(ApiError, match="is taken; choose another name"):
                await models.dynamic_adapters.add(tiny, name, "french.gguf")
        assert not models.loaded_models  # nothing was loaded for it
        held = Held(monkeypatch, "add_adapter")
        adding = asyncio.ensure_future(
            models.dynamic_adapters.add(tiny, "french", "french.gguf")
        )  # the name of its file
        assert await asyncio.to_thread(held.begun.wait, WAIT)
        with pytest.raises(ApiError, match="'French' is taken"):
            await models.dynamic_adapters.add(tiny, "French", "second.gguf")
        held.goes_on.set()
        await adding
        with pytest.raises(ApiError, match="'french:latest' is taken"):
            await models.dynamic_adapters.add(tiny, "french:latest", "second.gguf")
        await models.dynamic_adapters.add(tiny, "second", "second.gguf")

    story(folder, tell)


def test_adapter_too_large_for_memory_is_rejected_with_the_numbers(folder, monkeypatch):
    async def tell(models):
        tiny = await models.get("tiny")
        await models.load("tiny")
        with monkeypatch.context() as patched:
            patched.setattr(memory_estimate, "available_memory", lambda: 1)
            with pytest.raises(
                ApiError, match=r"GB for a second copy of its weights, but only 0\.00 GB are available"
            ) as caught:
                await models.dynamic_adapters.add(tiny, "french", "french.gguf")
            assert caught.value.status == 503
        models.ready("tiny").needs = MemoryEstimate(weights=150_000_000, cache=0, n_ctx=128)
        with pytest.raises(
            ApiError, match=r"0\.15 GB .* in addition to 0\.25 GB of models, but models_memory is 0\.30"
        ) as caught:
            await models.dynamic_adapters.add(tiny, "french", "french.gguf")
        assert caught.value.status == 503 and await models.find_derived("french") is None

    story(folder, tell, models_memory="300MB")


def test_model_loads_without_an_adapter_whose_file_is_gone(folder, monkeypatch, caplog):
    gone = write_lora(folder / "gone.gguf", lora(2))

    async def tell(models):
        tiny = await models.get("tiny")
        for name in ("gone", "second"):
            await models.dynamic_adapters.add(tiny, name, f"{name}.gguf")
        await models.unload("tiny")
        gone.unlink()
        held = Held(monkeypatch, "add_adapter")
        loading = asyncio.ensure_future(models.load("tiny"))
        assert await asyncio.to_thread(held.begun.wait, WAIT)
        removing = asyncio.ensure_future(models.dynamic_adapters.remove("gone"))  # which waits for the model
        await asyncio.sleep(0)
        held.goes_on.set()
        await loading
        assert await removing == "tiny"
        assert models.ready("tiny").llm.adapters == ("second",)
        assert await models.find_derived("gone") is None and await models.find_derived("second") is not None
        with pytest.raises(ApiError, match="lora_path is not a file path"):
            await models.dynamic_adapters.add(tiny, "third", "a\0b")

    story(folder, tell)
    assert "adapter left out" in caplog.text
