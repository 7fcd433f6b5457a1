"""Memory: whether a model fits before it is loaded, with the numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from woolly import _native
from woolly.engine import load_draft, possible_ctx
from woolly.errors import DeviceError
from woolly.gguf import open_gguf
from woolly.llm.speculation import own_draft
from woolly.machine.memory import available_memory
from woolly.models import trace
from woolly.runtime import Gpu, backend_for, find_gpu, is_gpu_backend, parse_devices, parse_size
from woolly.serving.errors import ApiError
from woolly.serving.settings.options import ModelOptions

__all__ = ["Estimate", "check_memory", "estimate"]

# Allowance for activations, tables and the interpreter itself.
_WORKING = 100_000_000


@dataclass(frozen=True)
class Estimate:
    """What a loaded model keeps, in bytes; pages of the mapped file do not count, the system can drop them."""

    weights: int
    cache: int
    n_ctx: int
    gpus: tuple[Gpu, ...] = ()  # that have it; none: the system's memory has
    may_split: bool = False  # whether the system's memory may have what the GPUs cannot hold

    @property
    def total(self) -> int:
        """Returns the sum, with an allowance for working memory."""
        return self.weights + self.cache + (0 if self.gpus else _WORKING)

    def times(self, n: int) -> Estimate:
        """Returns what n processes keep."""
        return replace(self, weights=n * self.weights, cache=n * self.cache)

    def shares_memory(self, other: Estimate) -> bool:
        """Whether the memory of one is that of the other."""
        numbers = {gpu.number for gpu in self.gpus}
        return bool(numbers & {gpu.number for gpu in other.gpus}) or not (numbers or other.gpus) or self.may_split


def estimate(path: Path, options: ModelOptions) -> Estimate:
    """Returns what the model takes at least. Raises the errors of the file and of `ctx`."""
    with open_gguf(path) as file:
        plan = trace(file)
        weights = file.n_bytes
        kind = options.kv_type or "f16"
        if options.backend == "reference":
            kind = "f32"
            weights = 4 * sum(tensor.n_elements for tensor in file.tensors.values())
        gpus = () if options.stages else _gpus(options)
        left = max(0, sum(gpu.usable for gpu in gpus) - weights) if gpus else None
        n_ctx = possible_ctx(file, plan, options.ctx, kind, left)
        if options.stages:  # they have both
            return Estimate(0, 0, n_ctx)
        own = load_draft(file, plan, options.ctx, own_draft(options.speculation))
        budget = parse_size("weight_memory", options.weight_memory)
        is_whole = options.gpu_layers in (None, "all") and is_gpu_backend(backend_for(options.device, options.backend))
        return Estimate(
            gpus=gpus,
            may_split=bool(gpus) and not is_whole,
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


def _gpus(options: ModelOptions) -> tuple[Gpu, ...]:
    """Returns the GPUs that a model would be opened on, with their free memory."""
    backend = backend_for(options.device, options.backend)
    if not (backend == "auto" or is_gpu_backend(backend)) or options.gpu_layers in (0, "0"):
        return ()
    try:
        return tuple(find_gpu(number) for number in dict.fromkeys(parse_devices(options.device)))
    except DeviceError:
        if is_gpu_backend(backend):
            raise
        return ()  # the CPU has it, then


def check_memory(name: str, needed: Estimate, freed: int = 0) -> None:
    """ApiError 503 if the available memory, with `freed` bytes of models that leave, cannot hold the model.

    That of GPUs, if they have the model: what they cannot hold may go to the system's only if nobody insists on them.
    """
    available = freed + (sum(gpu.usable for gpu in needed.gpus) if needed.gpus else available_memory())
    if needed.may_split:
        available += available_memory()
    if needed.total <= available:
        return
    where = f" on {' and '.join(dict.fromkeys(gpu.name for gpu in needed.gpus))}" if needed.gpus else ""
    where += " and here" * needed.may_split
    raise ApiError(
        503,
        "insufficient_memory",
        f"{name} takes about {_gb(needed.total)} ({_gb(needed.weights)} of weights, {_gb(needed.cache)} of cache for"
        f" {needed.n_ctx} tokens), but {_gb(available)} are available{where}",
        suggestion="unload another model, lower ctx_size or weight_memory, or choose a smaller model",
    )


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
