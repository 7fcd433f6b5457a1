"""What a backend is, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.options import Options
from woolly.runtime.reference import ReferenceBackend
from woolly.runtime.weights import WeightStats

__all__ = ["BACKENDS", "Backend", "Program", "choose"]


class Program(Protocol):
    """A plan compiled for one backend."""

    @property
    def plan(self) -> Plan:
        """What it computes."""

    @property
    def max_rows(self) -> int:
        """Most rows of a batch."""

    def prepare(self) -> None:
        """Starts to prepare weights in the background, where the backend has something to prepare."""

    def close(self) -> None:
        """Ends what `prepare` started."""

    def new_state(self, n_pages: int) -> Any:
        """An empty cache of so many pages, to be handed to `run`."""

    def run(self, batch: Batch, state: Any, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Steps `first` to `last` (exclusive); gives the value of the last step run, logits at the end.

        A run that starts in the middle goes on from the values that the run before it left. What is given back may
        be a view that the next run overwrites.
        """

    def cancel(self) -> None:
        """Stops a run that is under way, which then raises CancelledRun; may be called from any thread."""

    def weight_stats(self) -> WeightStats:
        """What the store of prepared weights did so far."""


class Backend(Protocol):
    """Compiles plans."""

    name: str

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """The program; what an option asks for and the backend cannot do is refused."""


BACKENDS: Mapping[str, Callable[[], Backend]] = {"cpu": CpuBackend, "reference": ReferenceBackend}


def choose(name: str = "auto") -> Backend:
    """The named backend, or the fastest that this machine can run."""
    if name == "auto":
        return CpuBackend()
    if name not in BACKENDS:
        raise RequestError(f"backend {name!r} is unknown; choose auto or one of: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name]()
