"""Statistics of the engine: cache, weights and memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from woolly._native import measure_bandwidth
from woolly.engine import Engine
from woolly.llm import LLM
from woolly.llm.bit_identity import device_bytes
from woolly.machine.memory import available_memory, peak_mib
from woolly.runtime import PAGE_SIZE
from woolly.serving.settings.checks import is_reference
from woolly.serving.settings.table import Settings

# Larger than the caches of a small machine; the measurement takes several 100 ms, once.
_MEGABYTES = 256


class Bandwidth:
    """Memory bandwidth of the machine, measured once between two engine steps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gb_per_second: float | None = None

    def measured(self, llm: LLM) -> float | None:
        """Return the bandwidth in GB/s, or None if it is unknown. A GPU's is computed from clock and bus width."""
        about = llm.engine.program.about
        if about.device:
            return None if about.device_bandwidth is None else about.device_bandwidth / 1e9
        threads = about.threads
        with self._lock:
            if self._gb_per_second is None and available_memory() > 4 * _MEGABYTES << 20:
                self._gb_per_second = llm.driver.call(lambda _: measure_bandwidth(threads, _MEGABYTES))
            return self._gb_per_second


def engine_stats(llm: LLM, bandwidth: float | None, tokens_per_second: float) -> dict[str, Any]:
    """Return the statistics of a loaded model after the current step.

    `tokens_per_second` is the rate of a single answer.
    """
    return llm.driver.call(lambda engine: _figures(engine, bandwidth, tokens_per_second))


def _figures(engine: Engine, bandwidth: float | None, tokens_per_second: float) -> dict[str, Any]:
    pool, program, about = engine.scheduler.pages, engine.program, engine.program.about
    prefix, weights = engine.prefix_stats(), program.weight_stats()
    looked_up = prefix.hit_tokens + prefix.miss_tokens
    reads = weights.hits + weights.misses
    figures: dict[str, Any] = {
        "running": len(engine.requests) - len(engine.scheduler.waiting),
        "waiting": len(engine.scheduler.waiting),
        "kv_cache": {
            "pages": pool.n_pages,
            "pages_used": pool.n_pages - pool.n_free,
            "tokens_per_page": PAGE_SIZE,
            "tokens": pool.n_pages * PAGE_SIZE,
            "contexts": pool.n_pages * PAGE_SIZE / engine.ctx,  # maximum context of one request
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
    figures["device"] = {"name": about.place, "backend": about.backend}
    if about.device:
        figures["device"] |= {
            "memory_bytes": device_bytes(engine),
            "memory_total_bytes": about.device_memory,
            "driver": about.device_driver,
        }
    if about.level is not None:
        # Decoding a token reads these bytes once, for any batch size.
        read = sum(step.row_bytes() for step in program.running_plan.steps if step.matrices)
        achieved = read * tokens_per_second / 1e9
        figures["kernels"] = {"level": about.level, "threads": about.threads}
        # Preallocated; no step allocates memory.
        figures["arena"] = {"bytes": about.arena_bytes}
        figures["bandwidth"] = {
            "measured_gb_per_second": bandwidth,
            "achieved_gb_per_second": achieved,
            "share": achieved / bandwidth if bandwidth else None,
        }
    return figures


def optimizations(llm: LLM | None, settings: Settings) -> list[str]:
    """Return the optimizations that the loaded model uses."""
    if is_reference(settings):
        return ["continuous_batching", "prefix_cache"]
    names = ["continuous_batching", "prefix_cache", "fused_plan", "packed_weights", "static_arena"]
    if llm is not None and (level := llm.engine.program.about.level) is not None:
        names.append(f"kernels_{level}")
    if llm is not None and llm.engine.draft is not None:
        names.append("speculation")
    return names


def memory_mb() -> float:
    """Return the resident memory of the process, including mapped files, in 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
    return peak_mib() * (1 << 20) / 1e6
