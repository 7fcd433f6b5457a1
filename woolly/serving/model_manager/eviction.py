"""Capacity: which models leave memory so that another one fits."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.memory_check import check_memory


def choose_evictions(
    slot: ModelSlot, others: Sequence[ModelSlot], models_max: int | None, max_bytes: int | None = None
) -> list[ModelSlot]:
    """Return the models to unload before `slot` is loaded: the longest unused first, those in use last.

    `models_max` counts per kind: an embedding model does not evict a text-generation model. `max_bytes` bounds all
    models of a memory together. Pinned models stay; `models_max` does not count them, `max_bytes` does.
    Includes models that are unloading, because they hold their memory until they are gone. ApiError 503 if the memory
    would not suffice; then nothing needs to be unloaded.
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
            # Idle models may leave too, but no answer is cut off for lack of memory.
            if not candidates or not candidates[0].is_idle:
                raise
            evicted.append(candidates.pop(0))


def check_reload(
    slot: ModelSlot, needs: MemoryEstimate, others: Sequence[ModelSlot], max_bytes: int | None = None
) -> None:
    """ApiError 503 if a loaded model could not be loaded again with other settings, which take `needs`."""
    evicted = [other for other in others if other is slot or other.state == "unloading" or other.is_idle]
    _check(slot, needs, others, evicted, max_bytes)


def check_adapter_memory(slot: ModelSlot, others: Sequence[ModelSlot], max_bytes: int | None) -> None:
    """ApiError 503 if models would take over `max_bytes` while the weights of a loaded one are prepared twice."""
    if max_bytes is None or slot.needs is None or slot.needs.gpus:  # a GPU changes no adapters
        return
    kept = _freed(slot.needs, others)
    if kept + slot.needs.weights > max_bytes:
        raise ApiError(
            503,
            "insufficient_memory",
            f"other adapters for {slot.info.name} take about {slot.needs.weights / 1e9:.2f} GB while its weights are"
            f" prepared a second time, beside {kept / 1e9:.2f} GB of models, but models_memory is"
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
    """ApiError 503 if the model fits neither into the memory nor into the share of it that models may take."""
    check_memory(slot.info.name, needs, _freed(needs, evicted))
    if max_bytes is None:
        return
    candidates = [other for other in others if other is not slot and other not in evicted]
    kept = _freed(needs, candidates)
    if needs.total + kept > max_bytes:
        beside = f" beside {kept / 1e9:.2f} GB of other models" if kept else ""
        raise ApiError(
            503,
            "insufficient_memory",
            f"{slot.info.name} takes about {needs.total / 1e9:.2f} GB{beside}, but models_memory is"
            f" {max_bytes / 1e9:.2f} GB",
            suggestion="unload another model, lower ctx_size, or raise models_memory",
        )


def _freed(needs: MemoryEstimate, evicted: Sequence[ModelSlot]) -> int:
    """Return the bytes that models leave in the memory that is needed."""
    return sum(other.n_bytes for other in evicted if _helps(needs, other))


def _helps(needs: MemoryEstimate, other: ModelSlot) -> bool:
    """Return True if a model uses the needed kind of memory: GPU or system."""
    return other.needs is None or needs.shares_memory(other.needs)
