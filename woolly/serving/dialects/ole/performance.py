"""GET /performance/stats and POST /performance/benchmark."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.measure.live_benchmark import Benchmarked, TestType, run_benchmark
from woolly.serving.dialects.ole.engine_stats import Bandwidth, engine_stats, memory_mb, optimizations
from woolly.serving.errors import ApiError
from woolly.serving.generation.thread_pool import SharedTask, run_in_thread
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.observability.metrics import Stats
from woolly.serving.router import APIRouter
from woolly.serving.settings.table import Settings

Look = tuple[ModelInfo | None, list[str], dict[str, Any]]  # (loaded model, optimizations, engine statistics)

router = APIRouter(prefix="/performance")

_SECONDS = 30.0  # maximum seconds of a benchmark after its first iteration


class BenchmarkBody(BaseModel):
    """Options of a benchmark."""

    model_config = ConfigDict(extra="forbid", strict=True)

    test_type: TestType
    iterations: int = Field(
        5, ge=1, le=100, description="Maximum iterations; fewer if they take longer than half a minute."
    )


@router.get("/stats", summary="Statistics since startup")
async def stats(request: Request, model: str | None = None) -> dict[str, Any]:
    """Return statistics of the named or last used loaded model, without loading a model.

    Rates and latencies cover the model's answers among the last 1024 answers.
    """
    state = request.app.state
    counted: Stats = state.stats
    models: ModelManager = state.models
    slot = models.ready(model, only_allowed=True)
    looks: dict[str | None, SharedTask[Look]] = state.looks
    key = None if slot is None else slot.info.name
    if key not in looks:
        for gone in looks.keys() - {one.info.name for one in models.loaded_models}:
            del looks[gone]
        looks[key] = SharedTask(partial(look_at, state, key))
    info, names, figures = await looks[key].get()
    shot = counted.snapshot(key)
    return {
        "model_type": None if info is None else info.architecture,
        "model": None if info is None else info.name,
        "average_tokens_per_second": shot["predicted_tokens_per_second"],
        "memory_usage_mb": memory_mb(),
        "cache_hit_rate": figures.get("prefix_cache", {}).get("hit_rate", 0.0),
        "optimizations_enabled": names,
        **shot,
        **figures,
    }


@router.post("/benchmark", summary="Compare the loaded model with the portable kernels")
async def benchmark(body: BenchmarkBody, request: Request) -> dict[str, Any]:
    """Run a benchmark.

    Requests continue, but each engine step may wait for one benchmark run. Only one benchmark runs at a time.
    """
    state = request.app.state
    models: ModelManager = state.models
    lock: asyncio.Lock = state.benchmarking
    if lock.locked():
        raise ApiError(
            429, "rate_limit_exceeded", "a benchmark is already running; try again later", retry_after=_SECONDS
        )
    stop = threading.Event()
    async with lock, models.use(None) as slot:
        work = asyncio.ensure_future(
            asyncio.to_thread(run_benchmark, slot.model, body.test_type, body.iterations, seconds=_SECONDS, stop=stop)
        )
        try:
            measured = await asyncio.shield(work)
        finally:
            # The model must stay loaded until the thread ends.
            stop.set()
            await asyncio.wait([work])
            work.exception()  # mark the exception as retrieved; the caller has it or is gone
    return _shape(measured)


async def look_at(state: Any, name: str | None) -> Look:
    """Query the engine of a loaded model on a thread, because a long step may be running."""
    models: ModelManager = state.models
    settings: Settings = state.settings
    bandwidth: Bandwidth = state.bandwidth
    slot = None if name is None else models.ready(name)
    if slot is None:
        return None, optimizations(None, settings), {}
    rate = state.stats.snapshot(name)["predicted_tokens_per_second"]
    async with models.use(slot.info.name) as used:
        llm = used.model
        figures = await run_in_thread(lambda: engine_stats(llm, bandwidth.measured(llm), rate))
        return slot.info, optimizations(llm, settings), figures


def _shape(measured: Benchmarked) -> dict[str, Any]:
    total = sum(measured.seconds)
    average = total / len(measured.seconds)
    return {
        "test_type": measured.test_type,
        "iterations": len(measured.seconds),
        "total_time_ms": 1000 * total,
        "average_time_ms": 1000 * average,
        "tokens_per_second": measured.n_tokens / average,
        "speedup_vs_baseline": measured.speedup,
        "tokens": measured.n_tokens,
        "kernels": measured.level,
        "threads": measured.threads,
        "baseline": {
            "kernels": measured.baseline,
            "iterations": measured.n_compared,
            "layers": measured.compared_layers,
            "of_layers": measured.n_layers,
        },
    }
