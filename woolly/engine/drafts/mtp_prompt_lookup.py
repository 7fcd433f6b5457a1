"""MtpLookupProposer: prompt lookup where it is accepted, else the MTP head."""

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

_PACE = 0.25  # weight of the latest guess in the share that came true
_WORTH = 0.5  # share of lookup's guesses from which on it is asked before the block


@dataclass
class _Record:
    """How often lookup was right about the next token of one request, whether it was asked or not."""

    n_shifts: int
    share: float = _WORTH
    at: int = 0  # the place in the context that it guessed last
    token: int = -1

    def look(self, request: Request) -> None:
        """Learns whether the last guess came true."""
        if self.n_shifts == request.n_shifts and self.token >= 0 and self.at < len(request.context):
            self.share += _PACE * ((request.context[self.at] == self.token) - self.share)
        self.n_shifts, self.token = request.n_shifts, -1


class MtpLookupProposer(MtpProposer):
    """Asks lookup for a request while its guesses come true, and the block for the others.

    A guess of lookup costs no run of the block, and it knows whole passages: a quotation, code that is edited. What it
    would have guessed is compared with what came even if the block was asked, so that a passage is found as it begins.
    """

    def __init__(self, program: Program, ids: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(program, ids)
        self._lookup = PromptLookupProposer()
        self._records: dict[Request, _Record] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Lookup's tokens where it is sound, the block's where not."""
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
        """Drops what was kept for a request that has ended."""
        super().forget(request)
        self._lookup.forget(request)
        self._records.pop(request, None)
