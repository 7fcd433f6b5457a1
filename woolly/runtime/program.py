"""Program: a plan compiled by a backend. Other packages use only these protocols of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from woolly.errors import PlanError, RequestError, WoollyError

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.batch import Batch
    from woolly.runtime.device_share import DeviceShare
    from woolly.runtime.options import Options
    from woolly.runtime.state import State


class CancelledRun(RequestError):  # noqa: N818 - the name says what became of the run
    """`Program.cancel` stopped the run. Its results are invalid, but the same batch may run again."""


class LostState(WoollyError):  # noqa: N818 - the name says what became of the state
    """The process that stored a state has exited, with its pages and slots. The state is now empty and may be reused.

    Raised once per state. Sequences must restart at position 0.
    """


@dataclass(frozen=True)
class About:
    """Backend, device and settings of a program."""

    backend: str  # name in BACKENDS
    level: str | None  # kernel level or device; None: the backend has no kernels to choose from
    threads: int
    arena_bytes: int  # preallocated for values between steps; 0: each step allocates its own
    kv_type: str = "f32"  # type of the KV cache
    memory: int | None = None  # bytes available for a cache; None: system memory
    shares: tuple[DeviceShare, ...] = ()  # one per device, if there are several
    device: str = ""  # name of the GPU; empty: the CPU
    device_memory: int | None = None  # total bytes of the GPU
    device_bandwidth: float | None = (
        None  # memory bandwidth of the GPU in bytes per second, reported by the driver or measured
    )
    device_driver: str = ""  # GPU driver, with emulated arithmetic if any
    arithmetic: str = ""  # backend whose bits the GPU reproduces; empty: different bits

    @property
    def bits(self) -> str:
        """Identity of the result bits: the backend, or the backend and GPU level if results are GPU-specific."""
        return self.arithmetic or (f"{self.backend} {self.level}" if self.device else self.backend)

    @property
    def place(self) -> str:
        """Human-readable device: the GPU and its level, or the CPU with kernels and threads."""
        if self.device:
            return f"{self.device}, {self.level}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return f"CPU, {self.level or 'NumPy'}, {threads}"


@dataclass(frozen=True)
class WeightStats:
    """Counters of the prepared weights since the program was compiled."""

    hits: int  # reads of a prepared weight
    misses: int
    evictions: int
    n_bytes: int  # kept
    n_missing: int = 0  # bytes not uploaded yet, included in n_bytes


class DraftProgram(Protocol):
    """`Plan.draft` compiled together with its plan, with shared weights. Its runs overwrite the plan's values."""

    @property
    def running_plan(self) -> Plan:
        """Executed plan, whose steps `run` counts."""

    def new_state(self, n_pages: int) -> State:
        """Return a separate empty cache of n pages. Sequences may use the same page numbers in both caches."""

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Run steps like `Program.run`, for a batch with hidden states."""


class Program(Protocol):
    """A plan compiled for one backend. One thread at a time may run it."""

    @property
    def plan(self) -> Plan:
        """The plan as the model file describes it."""

    @property
    def running_plan(self) -> Plan:
        """The plan that `run` executes: `plan` after the backend's passes."""

    @property
    def draft(self) -> DraftProgram | None:
        """Program of `Plan.draft`, or None if the plan has none."""

    @property
    def max_rows(self) -> int:
        """Maximum number of rows in a batch."""

    @property
    def about(self) -> About:
        """Backend, device and settings of the program."""

    def load_weights(self) -> None:
        """Start packing or uploading weights in the background, if the backend does either. Return immediately."""

    def close(self) -> None:
        """Stop the background work of `load_weights`."""

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> State:
        """Return an empty cache with n pages, and n slots if the plan has recurrent state.

        `window_pages` has the pages for each of `Plan.windows`, by default `n_pages` each.
        """

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Run steps `first` to `last` (exclusive; None: all) and return the value of the last one, finally the logits.

        A run that starts in the middle continues from the values of the previous run. The result may be a view that the
        next run overwrites. A program with parts in other processes may raise LostState.
        """

    def cancel(self) -> None:
        """Stop a run in progress, which then raises CancelledRun. Any thread may call it."""

    def timed(self) -> AbstractContextManager[list[int]]:
        """Time every run in the block. The list is empty until the block ends, then has nanoseconds per step."""

    def weight_stats(self) -> WeightStats:
        """Return the hits and misses of the prepared weights so far."""


@runtime_checkable
class Advances(Protocol):
    """A program that can keep values on the device if only later steps read them."""

    def advance(self, batch: Batch, state: State, first: int, last: int) -> None:
        """Run steps as `Program.run` without returning a value."""


@runtime_checkable
class SplitsRows(Protocol):
    """Program that can compute some rows of a step now and the others later, with the same bits."""

    def run_part(self, batch: Batch, state: State, step: int, first_row: int, last_row: int) -> npt.NDArray[np.float32]:
        """Compute rows `first_row` to `last_row` (exclusive) of one step's result, and return all of its rows.

        Row numbers refer to the step's value, which has the rows or the output rows of the batch. The step's op must
        have `cuts_rows`.
        """


class Backend(Protocol):
    """Compiles plans."""

    @property
    def name(self) -> str:
        """Name in BACKENDS."""

    @property
    def is_gpu(self) -> bool:
        """True if the backend computes on GPUs, which have separate memory and may share layers with the CPU."""

    @property
    def levels(self) -> Sequence[str]:
        """Values of `Options.level` that this machine can run, fastest first, or [] if there is no choice."""

    def is_available(self) -> bool:
        """True if this machine can run the backend."""

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """Compile a plan. Raises RequestError if the backend does not support an option."""


def checked_range(first: int, last: int | None, n_steps: int) -> tuple[int, int]:
    """Return the validated range of steps of a run. Raises PlanError if it exceeds `n_steps`."""
    last = n_steps if last is None else last
    if not 0 <= first < last <= n_steps:
        raise PlanError(f"steps {first} to {last} are not a part of a plan of {n_steps} steps")
    return first, last
