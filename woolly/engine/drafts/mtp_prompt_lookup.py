"""MtpLookupProposer: prompt lookup while its tokens are accepted, otherwise the MTP block."""

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
_WORTH = 0.5  # minimum acceptance rate for lookup to be preferred to the MTP block


@dataclass
class _Record:
    """Acceptance rate of lookup for a request, including predictions that were not proposed."""

    n_shifts: int
    share: float = _WORTH
    at: int = 0  # position of the latest prediction
    token: int = -1

    def look(self, request: Request) -> None:
        """Update the acceptance rate with the latest prediction."""
        if self.n_shifts == request.n_shifts and self.token >= 0 and self.at < len(request.context):
            self.share += _PACE * ((request.context[self.at] == self.token) - self.share)
        self.n_shifts, self.token = request.n_shifts, -1


class MtpLookupProposer(MtpProposer):
    """Uses prompt lookup for requests with a high lookup acceptance rate, and the MTP block for others.

    Lookup needs no forward pass and predicts long repeated passages, such as quotations or edited code. The lookup
    prediction is checked even if the block was used, so lookup takes over as soon as a passage repeats.
    """

    def __init__(self, program: Program, ids: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(program, ids)
        self._lookup = PromptLookupProposer()
        self._records: dict[Request, _Record] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Propose tokens for each request, using lookup or the MTP block."""
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
        """Drop the state of a finished request."""
        super().forget(request)
        self._lookup.forget(request)
        self._records.pop(request, None)
