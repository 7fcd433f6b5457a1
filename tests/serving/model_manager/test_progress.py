"""Load progress: the current stage, and the share of weights on the device."""

import asyncio
import threading
from dataclasses import replace

from woolly.runtime.cpu.program import CpuProgram
from woolly.serving import ModelManager, Settings
from woolly.serving.model_manager.loader import open_model


def test_loading_reports_its_stage_and_the_loaded_weights(folder, monkeypatch):
    gate, plain = threading.Event(), CpuProgram.weight_stats
    missing = 0.75

    def open_late(path, options):
        assert gate.wait(120)
        return open_model(path, options)

    def stats(self):
        whole = plain(self)
        return replace(whole, n_missing=int(missing * whole.n_bytes))

    monkeypatch.setattr(CpuProgram, "weight_stats", stats)

    async def states(models, *wanted):
        while True:
            found = {info.name: (info.state, info.stage) for info in await models.list()}
            if {found["one"], found["two"]} == set(wanted):  # either may come first
                return
            await asyncio.sleep(0.01)

    async def story():
        nonlocal missing
        models = ModelManager(Settings(models_dir=folder, ctx_size=128, threads=1, models_max=2))
        models.open_model = open_late
        loading = asyncio.gather(models.load("one"), models.load("two"))
        await asyncio.wait_for(states(models, ("loading", "opening"), ("loading", "waiting")), 120)
        gate.set()
        await loading
        await states(models, ("ready", None), ("ready", None))
        assert round((await models.get("one")).progress, 2) == 0.25
        missing = 0
        assert (await models.get("one")).progress is None
        await models.close()

    asyncio.run(story())
