"""The emitters of CUDA kernels, by op. A file of `ops/` enters its own."""

from __future__ import annotations

from collections.abc import Callable

from woolly.runtime.gpu.emit import Emit

__all__ = ["EMITTERS", "emits"]

EMITTERS: dict[str, Emit] = {}


def emits(*ops: str) -> Callable[[Emit], Emit]:
    """Decorates the emitter of one or more ops."""

    def enter(emit: Emit) -> Emit:
        EMITTERS.update(dict.fromkeys(ops, emit))
        return emit

    return enter
