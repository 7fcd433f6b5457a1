"""AssistantProposer: a draft head that attends to the model's K and V."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.drafts.greedy_tokens import greedy_tokens
from woolly.engine.drafts.mtp import MtpProposer
from woolly.runtime import Batch, CancelledRun, Program, State

if TYPE_CHECKING:
    from woolly.engine.request import Request

Int32 = npt.NDArray[np.int32]


class AssistantProposer(MtpProposer):
    """Proposes tokens without a cache: each row attends to the model's K and V of all computed positions.

    The first row takes the model's hidden state of the last computed position and the token after it. Later rows take
    the head's previous hidden state and draft token.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)  # an assistant has the model's vocabulary

    def borrow(self, state: State, windows: Callable[[Int32], Int32 | None]) -> None:
        """Set the model's state, and the function that returns the page tables of sliding-window layers."""
        self._state = state
        self._windows = windows

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Propose tokens one by one for all requests in a batch."""
        guesses: list[list[int]] = [[] for _ in wanted]
        rows: list[tuple[int, int, npt.NDArray[np.float32]]] = []  # index into `wanted`, token, hidden state
        for i, (request, _) in enumerate(wanted):
            waiting = self._take(request)
            at = -1 if waiting is None else len(request.context) - 2 - waiting.first
            if waiting is not None and 0 <= at < len(waiting.hidden) and len(rows) < self._max_rows:
                rows.append((i, request.context[-1], waiting.hidden[at]))
        is_own = False
        try:
            while rows:
                batch = self._batch([wanted[i][0] for i, _, _ in rows], rows, is_own)
                hidden = self._run(batch, 0, self._n_hidden).copy()
                chosen = greedy_tokens(self._draft, batch, self._pages, self._n_hidden)
                for (i, _, _), token in zip(rows, chosen, strict=True):
                    guesses[i].append(token)
                found = zip(rows, chosen, hidden, strict=True)
                rows = [(i, token, row) for (i, _, _), token, row in found if len(guesses[i]) < wanted[i][1]]
                is_own = True
        except CancelledRun:
            pass  # keep the tokens proposed before the cancellation
        return guesses

    def _batch(
        self,
        requests: Sequence[Request],
        rows: Sequence[tuple[int, int, npt.NDArray[np.float32]]],
        is_own: bool,
    ) -> Batch:
        batch = Batch.of(
            [([token], len(one.context) - 2, one.pages) for one, (_, token, _) in zip(requests, rows, strict=True)]
        )
        hidden = np.stack([row for *_, row in rows])
        return replace(batch, hidden=hidden, is_hidden_normed=is_own, window_pages=self._windows(batch.pages))

    def _store(self, unread: object) -> None:
        """Do nothing, because the model stores K and V."""
