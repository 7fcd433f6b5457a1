"""What a backend is, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.gguf import Tensor
from woolly.plan import Plan
from woolly.runtime.batch import Batch
from woolly.runtime.reference import ReferenceBackend
from woolly.runtime.state import State

__all__ = ["BACKENDS", "Backend", "Program", "choose"]


class Program(Protocol):
    """A plan compiled for one backend."""

    @property
    def plan(self) -> Plan:
        """What it computes."""

    def new_state(self, n_pages: int) -> State:
        """An empty cache of so many pages."""

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> npt.NDArray[np.float32]:
        """Steps `first` to `last` (exclusive); gives the value of the last step run, logits at the end.

        A run that starts in the middle goes on from the values that the run before it left.
        """


class Backend(Protocol):
    """Compiles plans."""

    name: str

    def compile(
        self, plan: Plan, tensors: Mapping[str, Tensor], *, threads: int | None, weight_memory: int | None
    ) -> Program:
        """`threads` None: all that the process may use. `weight_memory` None: no bound."""


BACKENDS: Mapping[str, Callable[[], Backend]] = {"reference": ReferenceBackend}


def choose(name: str = "auto") -> Backend:
    """The named backend, or the fastest that this machine can run."""
    if name == "auto":
        return ReferenceBackend()
    if name not in BACKENDS:
        raise RequestError(f"backend {name!r} is unknown; choose auto or one of: {', '.join(sorted(BACKENDS))}")
    return BACKENDS[name]()
