"""Memory estimate of a model before its weights are loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from woolly import _native
from woolly.engine import multimodal
from woolly.engine.loading.context_length import possible_ctx
from woolly.errors import DeviceError, RequestError
from woolly.machine.memory import available_memory
from woolly.runtime import Options, backend_for, find_gpu, is_gpu_backend, parse_devices

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile
    from woolly.plan import Plan
    from woolly.runtime import Gpu

# Allowance for activations, tables and the interpreter.
_WORKING = 100_000_000


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a loaded model in bytes, without mapped file pages, which the system can reclaim."""

    weights: int
    cache: int
    n_ctx: int
    gpus: tuple[Gpu, ...] = ()  # GPUs of the model; empty for system memory
    may_split: bool = False  # weights that do not fit the GPUs may go to system memory
    tower: int = 0  # multimodal encoder: weights and working memory
    cpu_weights: int = 0  # part of the weights that stays in system memory: the experts of `n_cpu_moe`

    @property
    def total(self) -> int:
        """Return the total memory, with an allowance for working memory."""
        return self.weights + self.cache + self.tower + (0 if self.gpus else _WORKING)

    def times(self, n: int) -> MemoryEstimate:
        """Return the memory of n processes that each load the model."""
        sizes = {"weights": self.weights, "cache": self.cache, "tower": self.tower, "cpu_weights": self.cpu_weights}
        return replace(self, **{name: n * size for name, size in sizes.items()})  # type: ignore[arg-type]

    def shares_memory(self, other: MemoryEstimate) -> bool:
        """Return True if both models use the same memory."""
        numbers = {gpu.number for gpu in self.gpus}
        is_mixed = self.may_split or self.cpu_weights > 0
        return bool(numbers & {gpu.number for gpu in other.gpus}) or not (numbers or other.gpus) or is_mixed


def estimate(
    file: GGUFFile,
    plan: Plan,
    backend: str,
    options: Options,
    ctx: int | None,
    kv_tokens: int | None = None,
    projector: Path | None = None,
) -> MemoryEstimate:
    """Return the minimum memory of a model, with the draft of its plan and a cache of `kv_tokens` or one context.

    The estimate includes the encoders of a `projector` at their largest input, unless the model is on GPUs.
    """
    gpus, kind = _gpus(backend, options), options.kv_type or "f16"
    weights = _all_weights(file, plan, backend)
    if backend == "reference":
        kind = "f32"
    cpu_weights = _cpu_weights(plan, options) if gpus else 0
    free = sum(gpu.usable for gpu in gpus) - (weights - cpu_weights)
    n_ctx = possible_ctx(file, plan, ctx, kind, max(0, free) if gpus else None)
    is_whole = options.gpu_layers in (None, "all") and is_gpu_backend(backend_for(options.device, backend))
    parts = [plan] if plan.draft is None or plan.draft.borrows else [plan, plan.draft]
    return MemoryEstimate(
        gpus=gpus,
        may_split=bool(gpus) and not is_whole,
        weights=weight_bytes(file, plan, backend, options),
        cache=int(sum(part.context_bytes(kv_tokens or n_ctx, _native.kv_value_bytes(kind)) for part in parts)),
        n_ctx=n_ctx,
        tower=0 if projector is None or gpus else multimodal.tower_bytes(projector),
        cpu_weights=cpu_weights,
    )


def _cpu_weights(plan: Plan, options: Options) -> int:
    """Return the bytes of the experts that `n_cpu_moe` keeps in system memory."""
    if not options.n_cpu_moe:
        return 0
    from woolly.runtime import cpu_expert_bytes  # imported late, because few models are split

    return cpu_expert_bytes(plan, options.n_cpu_moe)


def weight_bytes(file: GGUFFile, plan: Plan, backend: str, options: Options) -> int:
    """Return the maximum bytes of a model's prepared weights."""
    weights = _all_weights(file, plan, backend)
    return weights if options.weight_memory is None else min(weights, options.weight_memory)


def _all_weights(file: GGUFFile, plan: Plan, backend: str) -> int:
    """Return the bytes of all weights, including the draft file."""
    weights = plan.weights if plan.draft is None else {**plan.weights, **plan.draft.weights}
    others = [weight for weight in weights.values() if weight.tensor not in file.tensors]
    if backend == "reference":
        n_others = sum(math.prod(weight.shape) for weight in others)
        return 4 * (sum(tensor.n_elements for tensor in file.tensors.values()) + n_others)
    return file.n_bytes + sum(weight.n_bytes for weight in others)


def _gpus(backend: str, options: Options) -> tuple[Gpu, ...]:
    """Return the GPUs that would run a model, with their free memory."""
    backend = backend_for(options.device, backend)
    if not (backend == "auto" or is_gpu_backend(backend)) or options.gpu_layers == 0:
        return ()
    try:
        kind = backend if is_gpu_backend(backend) else None
        return tuple(find_gpu(number, kind) for number in dict.fromkeys(parse_devices(options.device)))
    except DeviceError:
        if is_gpu_backend(backend):
            raise
        return ()  # the model runs on the CPU


def check_memory(name: str, needed: MemoryEstimate) -> None:
    """Raise RequestError if the available memory cannot hold the model."""
    if reason := shortage(name, needed):
        raise RequestError(
            f"{reason}; lower ctx or weight_memory, or choose a smaller model",
            code="insufficient_memory",
            names=("ctx", "weight_memory"),
        )


def check_memory_for_second_copy(name: str, weights: int) -> None:
    """Raise RequestError if the available memory cannot hold a second copy of a model's prepared weights."""
    if weights > (available := available_memory()):
        raise RequestError(
            f"changing the adapters of {name} needs about {_gb(weights)} for a second copy of its weights, but only"
            f" {_gb(available)} are available; lower weight_memory, or load the model with these adapters",
            code="insufficient_memory",
            names=("weight_memory",),
        )


def shortage(name: str, needed: MemoryEstimate, freed: int = 0) -> str | None:
    """Return a message if the available memory plus `freed` bytes cannot hold the model, otherwise None.

    Check GPU memory if the model is on GPUs; only with `may_split` may the rest use system memory.
    """
    available = freed + (sum(gpu.usable for gpu in needed.gpus) if needed.gpus else available_memory())
    if needed.cpu_weights > (in_system := freed + available_memory()):
        return (
            f"{name} needs about {_gb(needed.cpu_weights)} for experts in system memory, but only {_gb(in_system)} are"
            " available there"
        )
    if needed.may_split:
        available += available_memory()
    if needed.total - (0 if needed.may_split else needed.cpu_weights) <= available:
        return None
    tower = f", {_gb(needed.tower)} for images" if needed.tower else ""
    where = f" on {' and '.join(dict.fromkeys(gpu.name for gpu in needed.gpus))}" if needed.gpus else ""
    where += " and in system memory" * needed.may_split
    return (
        f"{name} needs about {_gb(needed.total)} ({_gb(needed.weights)} of weights, {_gb(needed.cache)} of cache for"
        f" {needed.n_ctx} tokens{tower}), but only {_gb(available)} are available{where}"
    )


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
