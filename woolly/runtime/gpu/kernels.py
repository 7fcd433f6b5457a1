"""Kernels: what a kind of GPU brings to the machinery that all kinds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from woolly.plan.passes import Pass, fusions_for
from woolly.runtime.options import kept_as

if TYPE_CHECKING:
    from woolly.plan import Plan
    from woolly.runtime.batch import Batch
    from woolly.runtime.gpu.device import Address, Device
    from woolly.runtime.gpu.emit import Emit


class LogitRanker(Protocol):
    """What finds the largest logits of each row of output."""

    def queue(self, n: int, n_output: int) -> npt.NDArray[np.void]:
        """Ranks what the launches before leave; the result is there when the device is done, until two calls later."""

    def feed(self, picks: Address, n_rows: int) -> None:
        """Gives each row of the batch, which has come meanwhile, its token out of the last ranking."""


class Emitters(dict[str, "Emit"]):
    """Emitters by op, which the files of a backend's `ops/` enter."""

    def enter(self, *ops: str) -> Callable[[Emit], Emit]:
        """Decorates the emitter of one or more ops."""

        def decorate(emit: Emit) -> Emit:
            self.update(dict.fromkeys(ops, emit))
            return emit

        return decorate


@dataclass(frozen=True)
class Kernels:
    """The emitters of a backend, and what they ask of placement and of runs."""

    backend: str  # its name in BACKENDS
    emitters: Mapping[str, Emit]  # by op
    joined: Callable[[Plan, str], frozenset[int]]  # steps whose values live on for a kernel of two steps; by KV type
    # Whether attention of a batch takes another way: of few rows, one of them far, or with short sequences.
    is_far: Callable[[Batch], bool]
    # Makes what ranks logits on a device, for a batch, a value, its width and the most rows; None if nothing does.
    ranker: Callable[[Device, Address, Address, int, int], LogitRanker] | None = None
    sees: bool = False  # whether there are kernels for rows of images
    repeats: bool = False  # whether launches for many rows may be recorded, which a driver then gets at once
    n_front: Callable[[Batch], int] = lambda batch: 0  # rows in front that tiles of attention leave to other kernels
    centers: bool = False  # whether keys of 4 bits are kept without their bias
    chooses: bool = False  # whether attention reads positions that an index chooses
    arithmetic: str = ""  # the backend whose bits they give; empty: each level has its own

    def fusions(self, kv_type: str | None) -> tuple[Pass, ...]:
        """The passes of a plan that runs with them over a cache of this type; None: the usual one."""
        return fusions_for(kept_as(kv_type)[0] if self.centers and kv_type is not None else "")
