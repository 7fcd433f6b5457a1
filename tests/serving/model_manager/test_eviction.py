"""Time limit for long answers of a model that is unloaded, with a fake clock."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from woolly.serving import ModelManager, Settings
from woolly.serving.model_manager import manager

WAITS = {"swap_wait": 1000.0, "load_wait": 10_000.0, "grace": 200.0}


class Clock:
    """A clock that a test moves on, for the manager and for the timeouts of its loop."""

    def __init__(self, monkeypatch):
        self.passed = 0.0
        monkeypatch.setattr(manager, "time", SimpleNamespace(monotonic=self.now))
        monkeypatch.setattr(asyncio.get_running_loop(), "time", self.now)

    def now(self):
        return time.monotonic() + self.passed


async def until(holds):
    for _ in range(20_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to pass")


@pytest.mark.parametrize("is_discarded", [False, True])
def test_swap_truncates_long_answers_in_time_for_the_waiting_request(folder, monkeypatch, is_discarded):
    """The clock goes by thousands of seconds: those that the test itself takes do not count."""

    async def story():
        models = ModelManager(Settings(models_dir=folder, ctx_size=128, threads=1, **WAITS))
        async with models.use("one") as slot:
            clock = Clock(monkeypatch)
            swap = asyncio.create_task(models.load("two"))
            await until(lambda: any(one.info.name == "two" and one.needs for one in models.loaded_models))
            clock.passed = 1001.0
            await until(lambda: slot.state == "unloading")
            if is_discarded:  # by an administrator: the grace period counts, though it is being freed already
                models.discard(slot)
                clock.passed += 201.0
            else:
                clock.passed = 9700.0
                await asyncio.sleep(0.01)
                assert slot.llm is not None and not swap.done()
                clock.passed = 9900.0
            await until(lambda: slot.llm is None)
            assert (await swap).loaded
        await models.close()

    asyncio.run(story())
