"""MtpLookupProposer: prompt lookup while its tokens are accepted, else the MTP head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.engine.drafts.mtp import MtpProposer
from woolly.engine.drafts.prompt_lookup import PromptLookupProposer

if TYPE_CHECKING:
    from woolly.engine.request import Request
    from woolly.runtime import Program

_PACE = 0.25  # weight of the latest token in the acceptance rate
_WORTH = 0.5  # minimum acceptance rate of lookup to be used before the block


@dataclass
class _Record:
    """Acceptance rate of lookup for one request, including tokens that were not proposed."""

    n_shifts: int
    share: float = _WORTH
    at: int = 0  # the latest predicted position
    token: int = -1

    def look(self, request: Request) -> None:
        """Update the acceptance rate with the last prediction."""
        if self.n_shifts == request.n_shifts and self.token >= 0 and self.at < len(request.context):
            self.share += _PACE * ((request.context[self.at] == self.token) - self.share)
        self.n_shifts, self.token = request.n_shifts, -1


class MtpLookupProposer(MtpProposer):
    """Uses prompt lookup for requests with a high acceptance rate of it, and the MTP block for the others.

    Lookup needs no run of the block and finds long passages: a quotation, code that is edited. Its prediction is
    compared with the next token even if the block was used, so that a passage is found as it begins.
    """

    def __init__(self, program: Program, ids: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(program, ids)
        self._lookup = PromptLookupProposer()
        self._records: dict[Request, _Record] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Propose tokens of lookup or of the block, per request."""
        guesses = self._lookup.propose(wanted)
        asked: list[int] = []
        for i, ((request, _), found) in enumerate(zip(wanted, guesses, strict=True)):
            record = self._records.setdefault(request, _Record(request.n_shifts))
            record.look(request)
            if found:
                record.at, record.token = len(request.context), found[0]
            if not found or record.share < _WORTH:
                asked.append(i)
        for i, tokens in zip(asked, super().propose([wanted[i] for i in asked]), strict=True):
            guesses[i] = tokens
        return guesses

    def forget(self, request: Request) -> None:
        """Drop the state of a request that has ended."""
        super().forget(request)
        self._lookup.forget(request)
        self._records.pop(request, None)
