"""Kernels: the op emitters and capabilities that a GPU backend registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from woolly.plan.passes import Pass, fusions_for
from woolly.runtime.options import kv_type_pair

if TYPE_CHECKING:
    from woolly.plan import Plan
    from woolly.runtime.batch import Batch
    from woolly.runtime.gpu.device import Address, Device
    from woolly.runtime.gpu.emitter import Emit


class LogitRanker(Protocol):
    """Top-k of the logits of each output row."""

    def queue(self, n: int, n_output: int) -> npt.NDArray[np.void]:
        """Queue the top-n of each output row. The result is valid after the device is done, until two calls later."""

    def feed(self, picks: Address, n_rows: int) -> None:
        """Write tokens picked from the last ranking into the batch that was uploaded after it."""


class Emitters(dict[str, "Emit"]):
    """Emitters by op, registered by the modules in a backend's `ops/`."""

    def enter(self, *ops: str) -> Callable[[Emit], Emit]:
        """Register the decorated function as the emitter of one or more ops."""

        def decorate(emit: Emit) -> Emit:
            self.update(dict.fromkeys(ops, emit))
            return emit

        return decorate


@dataclass(frozen=True)
class Kernels:
    """Emitters of a backend, with their capabilities and scheduling hooks."""

    backend: str  # its name in BACKENDS
    emitters: Mapping[str, Emit]  # by op
    joined: Callable[
        [Plan, str], frozenset[int]
    ]  # steps fused with the next one for a KV type. Their inputs must stay allocated until then.
    # True if a batch needs the sequential attention kernels: few rows with a long context, or short sequences.
    is_far: Callable[[Batch], bool]
    # Factory of the top-k kernels: device, struct Batch, logits, width, maximum rows. None: the host ranks logits.
    ranker: Callable[[Device, Address, Address, int, int], LogitRanker] | None = None
    sees: bool = False  # whether multimodal batches are supported
    repeats: bool = False  # whether large batches may run as graphs, submitted in one call
    n_front: Callable[[Batch], int] = lambda batch: 0  # leading rows that the tiled attention skips
    centers: bool = False  # whether 4-bit keys are stored without their bias
    chooses: bool = False  # whether sparse attention (positions selected by an indexer) is supported
    arithmetic: str = ""  # the backend with bit-identical results; empty: results depend on the level

    def fusions(self, kv_type: str | None) -> tuple[Pass, ...]:
        """Fusion passes for plans with a KV cache of this type; None: the default type."""
        return fusions_for(kv_type_pair(kv_type)[0] if self.centers and kv_type is not None else "")
