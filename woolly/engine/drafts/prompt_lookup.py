"""PromptLookupProposer: proposes tokens by n-gram lookup in the context, without a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.engine.request import Request


class PromptLookupProposer:
    """Proposes tokens from an n-gram index of each context."""

    def __init__(self, max_ngram: int = 4, min_ngram: int = 2) -> None:
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram
        self._seen: dict[Request, _Runs] = {}

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        """Propose the tokens after the latest earlier occurrence of the longest n-gram at the end of the context."""
        out = []
        for request, n in wanted:
            runs = self._seen.get(request)
            if runs is None or runs.n_shifts != request.n_shifts:
                runs = self._seen[request] = _Runs(request.n_shifts, self._max_ngram, self._min_ngram)
            at = runs.find(request.context)
            out.append([] if at is None else request.context[at : at + n])
        return out

    def forget(self, request: Request) -> None:
        """Drop the index of a finished request."""
        self._seen.pop(request, None)


class _Runs:
    """Maps each n-gram of one context to the position after its latest occurrence."""

    def __init__(self, n_shifts: int, max_ngram: int, min_ngram: int) -> None:
        self.n_shifts = n_shifts
        self._lengths = range(max_ngram, min_ngram - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._n = 0  # number of indexed tokens

    def find(self, context: list[int]) -> int | None:
        """Return the position after an earlier occurrence of the n-gram at the end of the context, or None."""
        for end in range(self._n + 1, len(context)):
            for length in self._lengths:
                if end >= length:
                    self._ends[tuple(context[end - length : end])] = end
        self._n = max(self._n, len(context) - 1)
        for length in self._lengths:
            if len(context) > length and (at := self._ends.get(tuple(context[-length:]))) is not None:
                return at
        return None
