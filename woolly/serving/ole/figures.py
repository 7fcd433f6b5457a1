"""Figures of the engine: what its cache, its weights and the machine's memory do."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

from woolly._native import measure_bandwidth
from woolly.engine import Engine, available_memory
from woolly.engine.bench import peak_mib
from woolly.llm import LLM
from woolly.plan import Step
from woolly.runtime import PAGE_SIZE
from woolly.runtime.cpu import CpuProgram
from woolly.serving.settings import Settings

__all__ = ["Bandwidth", "engine_figures", "memory_mb", "optimizations", "row_bytes"]

# Well beyond the caches of a small machine; measuring takes some tenths of a second, once.
_MEGABYTES = 256


class Bandwidth:
    """What the machine's memory gives, measured once, between two steps of the engine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gb_per_second: float | None = None

    def measured(self, llm: LLM) -> float | None:
        """10^9 bytes per second; None where there is too little memory to measure in."""
        program = llm.engine.program
        with self._lock:
            if self._gb_per_second is None and available_memory() > 4 * _MEGABYTES << 20:
                threads = program.threads if isinstance(program, CpuProgram) else 1
                self._gb_per_second = llm.driver.call(lambda _: measure_bandwidth(threads, _MEGABYTES))
            return self._gb_per_second


def engine_figures(llm: LLM, bandwidth: float | None, tokens_per_second: float) -> dict[str, Any]:
    """Of one loaded model; waits for the step under way. `tokens_per_second` is that of one answer."""
    return llm.driver.call(lambda engine: _figures(engine, bandwidth, tokens_per_second))


def _figures(engine: Engine, bandwidth: float | None, tokens_per_second: float) -> dict[str, Any]:
    pool, program = engine.scheduler.pages, engine.program
    prefix, weights = engine.prefix_stats(), program.weight_stats()
    looked_up = prefix.hit_tokens + prefix.miss_tokens
    reads = weights.hits + weights.misses
    figures: dict[str, Any] = {
        "running": len(engine.scheduler.running),
        "waiting": len(engine.scheduler.waiting),
        "kv_cache": {
            "pages": pool.n_pages,
            "pages_used": pool.n_pages - pool.n_free,
            "tokens_per_page": PAGE_SIZE,
            "bytes": engine.state.n_bytes,
        },
        "prefix_cache": {
            "hit_tokens": prefix.hit_tokens,
            "miss_tokens": prefix.miss_tokens,
            "hit_rate": prefix.hit_tokens / looked_up if looked_up else 0.0,
            "cached_pages": prefix.cached_pages,
            "evictions": prefix.evictions,
            "reasons": dict(prefix.reasons),
        },
        "weights": {
            "packed_bytes": weights.n_bytes,
            "hits": weights.hits,
            "misses": weights.misses,
            "evictions": weights.evictions,
            "hit_rate": weights.hits / reads if reads else 0.0,
        },
    }
    if isinstance(program, CpuProgram):
        # A token of an answer reads these once, whoever else is in the batch.
        read = sum(row_bytes(step) for step in program.fused.steps if step.op != "embed")
        achieved = read * tokens_per_second / 1e9
        figures["kernels"] = {"level": program.level, "threads": program.threads}
        # All values have their place in it from the start: no step allocates.
        figures["arena"] = {"bytes": program.arena_bytes}
        figures["bandwidth"] = {
            "measured_gb_per_second": bandwidth,
            "achieved_gb_per_second": achieved,
            "share": achieved / bandwidth if bandwidth else None,
        }
    return figures


def row_bytes(step: Step) -> int:
    """Bytes of weights that a step reads for one row: of experts, those that the row goes to."""
    sizes = ((w, w.type.row_bytes(w.shape[-1]) * math.prod(w.shape[:-1])) for w in step.weights)
    return round(sum(n_bytes * step.used_share(weight) for weight, n_bytes in sizes))


def optimizations(llm: LLM | None, settings: Settings) -> list[str]:
    """What speeds the served model up, by name."""
    if not settings.optimized_inference:
        return ["continuous_batching", "prefix_cache"]
    names = ["continuous_batching", "prefix_cache", "fused_plan", "packed_weights", "static_arena"]
    if llm is not None and isinstance(program := llm.engine.program, CpuProgram):
        names.append(f"kernels_{program.level}")
    if settings.model_draft is not None:
        names.append("speculation")
    return names


def memory_mb() -> float:
    """What the process holds at present, mapped files included, in 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
    return peak_mib() * (1 << 20) / 1e6
