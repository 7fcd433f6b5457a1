"""Memory: whether a model fits before it is loaded, told in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from woolly.engine import available_memory, default_ctx
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import parse_size
from woolly.serving.errors import ApiError
from woolly.serving.settings import Settings

__all__ = ["Estimate", "check_memory", "estimate"]

_BYTES = {"f16": 2.0, "f32": 4.0, "q8_0": 34 / 32}  # of one number in the cache

# An allowance for values between steps, tables and the interpreter's own.
_WORKING = 100_000_000


@dataclass(frozen=True)
class Estimate:
    """What a loaded model keeps, in bytes; the mapped file itself can be dropped and read again."""

    weights: int
    cache: int
    n_ctx: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + _WORKING


def estimate(path: Path, settings: Settings) -> Estimate:
    """What the model takes at least with these settings. Errors of the file and of ctx_size show here already."""
    with open_gguf(path) as file:
        plan = trace(file)
        n_ctx = default_ctx(file, plan, settings.ctx_size)
        weights = file.n_bytes
        kind = settings.cache_type_k or "f16"
        if not settings.optimized_inference:
            kind = "f32"
            weights = 4 * sum(tensor.n_elements for tensor in file.tensors.values())
        budget = parse_size("weight_memory", settings.weight_memory)
        per_token = 2 * sum(layer.width for layer in plan.cache) * _BYTES[kind]
        return Estimate(
            weights=weights if budget is None else min(weights, budget),
            cache=int(per_token * (settings.kv_tokens or n_ctx)),
            n_ctx=n_ctx,
        )


def check_memory(name: str, needed: Estimate, freed: int = 0) -> None:
    """ApiError 503 where what is available, and what is freed before, does not hold the model."""
    available = available_memory() + freed
    if needed.total <= available:
        return
    raise ApiError(
        503,
        "insufficient_memory",
        f"{name} takes about {_gb(needed.total)} ({_gb(needed.weights)} of weights, {_gb(needed.cache)} of cache for"
        f" {needed.n_ctx} tokens), but {_gb(available)} are available",
        suggestion="unload another model, lower ctx_size or weight_memory, or choose a smaller model",
    )


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
