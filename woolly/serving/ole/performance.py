"""GET /performance/stats and POST /performance/benchmark: figures that were measured."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.errors import ApiError
from woolly.serving.holding import Shared, run_held
from woolly.serving.metrics import Stats
from woolly.serving.models import ModelInfo, ModelManager
from woolly.serving.ole.benchmark import BASELINE, Benchmarked, TestType, run_benchmark
from woolly.serving.ole.figures import Bandwidth, engine_figures, memory_mb, optimizations
from woolly.serving.settings import Settings

__all__ = ["BenchmarkBody", "Look", "benchmark", "look_at", "router", "stats"]

Look = tuple[ModelInfo | None, list[str], dict[str, Any]]  # the loaded model, what speeds it up, its engine's figures

router = APIRouter(prefix="/performance")

_SECONDS = 30.0  # that a benchmark may take, but for its first iteration


class BenchmarkBody(BaseModel):
    """What to measure."""

    model_config = ConfigDict(extra="forbid", strict=True)

    test_type: TestType
    iterations: int = Field(5, ge=1, le=100, description="At most; fewer where they take longer than half a minute.")


@router.get("/stats", summary="Figures since the start")
async def stats(request: Request) -> dict[str, Any]:
    """Rates and latencies are those of the last 1024 answers. Nothing is loaded for it."""
    state = request.app.state
    counted: Stats = state.stats
    shot = counted.snapshot()
    look: Shared[Look] = state.look
    info, names, figures = await look.get()
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


@router.post("/benchmark", summary="Measure the served model beside the portable kernels")
async def benchmark(body: BenchmarkBody, request: Request) -> dict[str, Any]:
    """Requests go on meanwhile, each step waiting for one run at most. One benchmark at a time."""
    state = request.app.state
    models: ModelManager = state.models
    lock: asyncio.Lock = state.benchmarking
    if lock.locked():
        raise ApiError(
            429, "rate_limit_exceeded", "a benchmark is running; only one runs at a time", retry_after=_SECONDS
        )
    stop = threading.Event()
    async with lock, models.acquire(None) as llm:
        work = asyncio.ensure_future(
            asyncio.to_thread(run_benchmark, llm.llm, body.test_type, body.iterations, seconds=_SECONDS, stop=stop)
        )
        try:
            measured = await asyncio.shield(work)
        finally:
            # The model must stay until the thread has let go of it.
            stop.set()
            await asyncio.wait([work])
            work.exception()  # was told, or nobody is left to be told
    return _shape(measured)


async def look_at(state: Any) -> Look:
    """Asks the engine of the model that is loaded, on a thread, since it may be in the midst of a long step."""
    models: ModelManager = state.models
    settings: Settings = state.settings
    bandwidth: Bandwidth = state.bandwidth
    slot = next((slot for slot in models.all_loaded if slot.state == "ready"), None)
    if slot is None:
        return None, optimizations(None, settings), {}
    rate = state.stats.snapshot()["predicted_tokens_per_second"]
    async with models.acquire(slot.info.name) as llm:
        figures = await run_held(lambda: engine_figures(llm.llm, bandwidth.measured(llm.llm), rate))
        return slot.info, optimizations(llm.llm, settings), figures


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
            "kernels": BASELINE,
            "iterations": measured.n_compared,
            "layers": measured.compared_layers,
            "of_layers": measured.n_layers,
        },
    }
