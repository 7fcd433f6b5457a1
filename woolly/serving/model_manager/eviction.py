"""Chooses the models to unload so that another model fits."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.memory_check import check_memory


def choose_evictions(
    slot: ModelSlot, others: Sequence[ModelSlot], models_max: int | None, max_bytes: int | None = None
) -> list[ModelSlot]:
    """Return the models to unload before `slot` is loaded: least recently used first, models in use last.

    `models_max` counts per kind, so an embedding model does not evict a text-generation model. `max_bytes` limits all
    models on the same device together. Pinned models are never unloaded; they count toward `max_bytes` but not
    `models_max`. The result includes models that are unloading, because they use memory until they are gone. Raises
    ApiError 503 if the memory would not suffice, in which case nothing needs to be unloaded.
    """
    assert slot.needs is not None
    evicted = [other for other in others if other.state == "unloading"]
    ready = sorted(
        (other for other in others if other is not slot and other.state == "ready" and not other.keep_alive.is_pinned),
        key=lambda other: (other.users > 0, other.last_used),
    )
    alike = [other for other in ready if other.info.kind == slot.info.kind]
    too_many = [] if models_max is None else alike[: max(0, len(alike) + 1 - models_max)]
    evicted += too_many
    candidates = [other for other in ready if other not in too_many and _helps(slot.needs, other)]
    while True:
        try:
            _check(slot, slot.needs, others, evicted, max_bytes)
            return evicted
        except ApiError:
            # Idle models may be unloaded for memory, but no running answer is interrupted for it.
            if not candidates or not candidates[0].is_idle:
                raise
            evicted.append(candidates.pop(0))


def check_reload(
    slot: ModelSlot, needs: MemoryEstimate, others: Sequence[ModelSlot], max_bytes: int | None = None
) -> None:
    """Raise ApiError 503 if a loaded model could not be reloaded with settings that require the memory `needs`."""
    evicted = [other for other in others if other is slot or other.state == "unloading" or other.is_idle]
    _check(slot, needs, others, evicted, max_bytes)


def check_adapter_memory(slot: ModelSlot, others: Sequence[ModelSlot], max_bytes: int | None) -> None:
    """Raise ApiError 503 if preparing the weights a second time would exceed `max_bytes`."""
    if max_bytes is None or slot.needs is None or slot.needs.gpus:  # adapters on a GPU cannot change
        return
    kept = _freed(slot.needs, others)
    if kept + slot.needs.weights > max_bytes:
        raise ApiError(
            503,
            "insufficient_memory",
            f"changing the adapters of {slot.info.name} needs about {slot.needs.weights / 1e9:.2f} GB for a second"
            f" copy of its weights, in addition to {kept / 1e9:.2f} GB of models, but models_memory is"
            f" {max_bytes / 1e9:.2f} GB",
            suggestion="unload another model, lower weight_memory, raise models_memory, or start with --lora",
        )


def _check(
    slot: ModelSlot,
    needs: MemoryEstimate,
    others: Sequence[ModelSlot],
    evicted: Sequence[ModelSlot],
    max_bytes: int | None,
) -> None:
    """Raise ApiError 503 if the model exceeds the available memory or `max_bytes`."""
    check_memory(slot.info.name, needs, _freed(needs, evicted))
    if max_bytes is None:
        return
    candidates = [other for other in others if other is not slot and other not in evicted]
    kept = _freed(needs, candidates)
    if needs.total + kept > max_bytes:
        beside = f" in addition to {kept / 1e9:.2f} GB of other models" if kept else ""
        raise ApiError(
            503,
            "insufficient_memory",
            f"{slot.info.name} needs about {needs.total / 1e9:.2f} GB{beside}, but models_memory is"
            f" {max_bytes / 1e9:.2f} GB",
            suggestion="unload another model, lower ctx_size, or raise models_memory",
        )


def _freed(needs: MemoryEstimate, evicted: Sequence[ModelSlot]) -> int:
    """Return the bytes that unloading frees in the required kind of memory."""
    return sum(other.n_bytes for other in evicted if _helps(needs, other))


def _helps(needs: MemoryEstimate, other: ModelSlot) -> bool:
    """Return True if a model uses memory of the same kind, GPU or system."""
    return other.needs is None or needs.shares_memory(other.needs)
