"""Memory: whether a model fits before it is loaded, with the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from woolly import _native
from woolly.engine import load_draft, possible_ctx
from woolly.gguf import open_gguf
from woolly.llm.speculation import own_draft
from woolly.machine.memory import available_memory
from woolly.models import trace
from woolly.runtime import parse_size
from woolly.serving.errors import ApiError
from woolly.serving.loading.options import ModelOptions

__all__ = ["Estimate", "check_memory", "estimate"]

# Allowance for activations, tables and the interpreter itself.
_WORKING = 100_000_000


@dataclass(frozen=True)
class Estimate:
    """What a loaded model keeps, in bytes; pages of the mapped file do not count, the system can drop them."""

    weights: int
    cache: int
    n_ctx: int

    @property
    def total(self) -> int:
        """Returns the sum, with an allowance for working memory."""
        return self.weights + self.cache + _WORKING

    def times(self, n: int) -> Estimate:
        """Returns what n processes keep."""
        return Estimate(n * self.weights, n * self.cache, self.n_ctx)


def estimate(path: Path, options: ModelOptions) -> Estimate:
    """Returns what the model takes at least. Raises the errors of the file and of `ctx`."""
    with open_gguf(path) as file:
        plan = trace(file)
        weights = file.n_bytes
        kind = options.kv_type or "f16"
        if options.backend == "reference":
            kind = "f32"
            weights = 4 * sum(tensor.n_elements for tensor in file.tensors.values())
        n_ctx = possible_ctx(file, plan, options.ctx, kind)
        if options.stages:  # they have both
            return Estimate(0, 0, n_ctx)
        own = load_draft(file, plan, options.ctx, own_draft(options.speculation))
        budget = parse_size("weight_memory", options.weight_memory)
        return Estimate(
            weights=weights if budget is None else min(weights, budget),
            cache=int(
                sum(
                    part.context_bytes(options.kv_tokens or n_ctx, _native.kv_value_bytes(kind))
                    for part in (plan, own)
                    if part is not None
                )
            ),
            n_ctx=n_ctx,
        )


def check_memory(name: str, needed: Estimate, freed: int = 0) -> None:
    """ApiError 503 if the available memory, with `freed` bytes of models that leave, cannot hold the model."""
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
