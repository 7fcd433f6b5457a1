"""The Program: a plan compiled by a backend. These protocols are all that other rooms know of a backend."""

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
    from woolly.runtime.options import Options
    from woolly.runtime.shares import Share
    from woolly.runtime.state import State


class CancelledRun(RequestError):  # noqa: N818 - the name says what became of the run
    """`Program.cancel` stopped the run. Its results are void; the same batch may run again."""


class LostState(WoollyError):  # noqa: N818 - the name says what became of the state
    """The process that kept a state is gone, and its pages and slots with it. The state is empty now, and may be used.

    Each state raises it once. Runs that go on from what the state held would be wrong: texts begin at position 0 again.
    """


@dataclass(frozen=True)
class About:
    """Backend, device and settings of a program."""

    backend: str  # its name in BACKENDS
    level: str | None  # of the kernels, or the device; None: the backend has no kernels to choose from
    threads: int
    arena_bytes: int  # allocated once for the values between steps; 0: a step allocates its own
    kv_type: str = "f32"  # of keys and values in the cache
    memory: int | None = None  # bytes that are left for a cache; None: what the system has
    shares: tuple[Share, ...] = ()  # of each device, if there are several
    device: str = ""  # the name of the GPU; empty: the CPU
    device_memory: int | None = None  # bytes of the GPU in all
    device_bandwidth: float | None = None  # bytes per second of the GPU's memory, as its driver says, else measured
    device_driver: str = ""  # of the GPU, with what stands in for arithmetic that it lacks
    arithmetic: str = ""  # the backend whose bits a GPU gives; empty: bits of its own

    @property
    def bits(self) -> str:
        """Identity of the result bits: the backend, with the GPU's level if it computes different bits."""
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

    hits: int  # reads of a weight that was kept prepared
    misses: int
    evictions: int
    n_bytes: int  # kept
    n_missing: int = 0  # of these bytes, those that are still on their way to a device


class DraftProgram(Protocol):
    """`Plan.draft` compiled beside its plan, whose weights it shares. Its runs overwrite the values of the plan's."""

    @property
    def running_plan(self) -> Plan:
        """The plan whose steps `run` counts."""

    def new_state(self, n_pages: int) -> State:
        """An empty cache of n pages of its own; sequences may use the pages of the same numbers in both."""

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Run steps as `Program.run`; the batch has hidden states."""


class Program(Protocol):
    """A plan compiled for one backend. One thread at a time may run it."""

    @property
    def plan(self) -> Plan:
        """The plan as the model file describes it."""

    @property
    def running_plan(self) -> Plan:
        """The plan whose steps `run` counts: `plan`, or what the backend's passes made of it."""

    @property
    def draft(self) -> DraftProgram | None:
        """Program of `Plan.draft`; None if the plan has none."""

    @property
    def max_rows(self) -> int:
        """Maximum rows of a batch."""

    @property
    def about(self) -> About:
        """Backend, device and settings of the program."""

    def load_weights(self) -> None:
        """Starts to pack or upload weights in the background, if the backend does either. Returns at once."""

    def close(self) -> None:
        """Ends what `load_weights` started."""

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> State:
        """An empty cache of n pages, and of n slots if the plan keeps any, for `run` of this program.

        `window_pages` are the pages of the entries of each of `Plan.windows`; without them, `n_pages` each.
        """

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Runs steps `first` to `last` (exclusive; None: all) and returns the value of the last one: logits at the end.

        A run that starts in the middle continues from the values of the run before it. The result may be a view that
        the next run overwrites. A program whose parts are in other processes may raise LostState.
        """

    def cancel(self) -> None:
        """Stops a run that is under way, which then raises CancelledRun. Any thread may call it."""

    def timed(self) -> AbstractContextManager[list[int]]:
        """Times every run in the block. The list is empty until the block ends, then has nanoseconds per step."""

    def weight_stats(self) -> WeightStats:
        """Hits and misses of the prepared weights so far."""


@runtime_checkable
class Advances(Protocol):
    """A program whose values are far from the host: it can leave there what only later steps read."""

    def advance(self, batch: Batch, state: State, first: int, last: int) -> None:
        """Runs steps as `Program.run` does, and gives nothing."""


@runtime_checkable
class CutsRows(Protocol):
    """A program that can compute some rows of a step now and the others later, to the same bits."""

    def run_part(self, batch: Batch, state: State, step: int, first_row: int, last_row: int) -> npt.NDArray[np.float32]:
        """Computes rows `first_row` to before `last_row` of one step's result, and returns all of its rows.

        Rows are those of the step's value: of the batch, or of its wanted rows. `Op.cuts_rows` says which steps can.
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
        """Values of `Options.level` that this machine can run, fastest first; empty: there is no choice."""

    def is_available(self) -> bool:
        """True if this machine can run the backend."""

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """The program; an option that the backend cannot honour is a RequestError."""


def checked_range(first: int, last: int | None, n_steps: int) -> tuple[int, int]:
    """The steps of a run, as `Program.run` takes them; PlanError for what is not part of a plan of `n_steps`."""
    last = n_steps if last is None else last
    if not 0 <= first < last <= n_steps:
        raise PlanError(f"steps {first} to {last} are not a part of a plan of {n_steps} steps")
    return first, last
