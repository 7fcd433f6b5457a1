"""The Runner: runs the work of a step on the program, halting for hooks, until it is cancelled for good."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from woolly.engine.batching import Work
from woolly.engine.drafts.mtp import MtpDraft
from woolly.engine.hooks import call_hook
from woolly.engine.request import Request
from woolly.errors import CallbackError
from woolly.runtime import Batch, CancelledRun, Program, State

__all__ = ["Runner"]

Float32 = npt.NDArray[np.float32]


class Runner:
    """One program with the state that it reads and writes."""

    def __init__(
        self, program: Program, state: State, check_file: Callable[[], None] | None, draft: MtpDraft | None = None
    ) -> None:
        """`check_file` raises if the weights have changed. `draft` reads the hidden states of each step."""
        self.program = program
        self.state = state
        self._check_file = check_file
        self._draft = draft
        self._computing: tuple[Request, ...] = ()  # in the run under way
        self._is_aborted = False

    def run(self, work: Sequence[Work], batch: Batch) -> Float32 | None:
        """Logits of the rows that need them; None if the run was cancelled for good."""
        draft = self._draft
        halts = sorted({step for item in work for step in item.request.hooks} | ({draft.step} if draft else set()))
        self._computing = tuple(item.request for item in work)
        try:
            while not (self._is_aborted or all(request.is_unwanted for request in self._computing)):
                try:
                    first = 0
                    while halts:
                        value = self.compute(batch, first, halts[0] + 1)
                        first = halts[0] + 1
                        if draft is not None and halts[0] == draft.step:
                            draft.keep(work, batch, value)
                        _call_hooks(work, batch, halts.pop(0), value)
                    return self.compute(batch, first)
                except CancelledRun:
                    pass  # a late cancel() aimed at the previous run: retry, skipping hooks that were already called
            return None
        finally:
            self._computing = ()

    def compute(self, batch: Batch, first: int = 0, last: int | None = None) -> Float32:
        """The value of the last of some steps, as `Program.run` gives it."""
        if self._check_file is not None:
            self._check_file()  # it also puts the handler of lost pages in front of one that came later
        value = self.program.run(batch, self.state, first, last)
        if self._check_file is not None:
            self._check_file()
        return value

    def abandon(self) -> None:
        """Stops the run under way if all of its requests are cancelled. Any thread may call it."""
        computing = self._computing
        if computing and all(request.is_unwanted for request in computing):
            self.program.cancel()

    def abort(self) -> None:
        """Stops the run under way and prevents later ones. Any thread may call it."""
        self._is_aborted = True
        self.program.cancel()


def _call_hooks(work: Sequence[Work], batch: Batch, step: int, value: Float32) -> None:
    for item, row in zip(work, batch.offsets.tolist(), strict=False):
        request = item.request
        # The hooks read rows that a preemption makes the program compute again the first time.
        skip = max(0, request.n_hooked - item.first)
        positions = np.arange(item.first + skip, item.first + item.n_rows, dtype=np.int32)
        for hook in request.hooks.get(step, ()):
            if request.error is None and len(positions):
                try:
                    call_hook(hook, step, positions, value[row + skip : row + item.n_rows].copy())
                except CallbackError as error:
                    request.error = error
