"""Constraint: tokens that a grammar allows next in a sequence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from woolly.errors import RequestError
from woolly.grammar.source import explain

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from woolly.grammar.unique_items import UniqueItems

# CPU time per token that a grammar may use in the engine's thread, and the allowed total excess. Typical
# grammars take less than 0.1 ms, literals of 10,000 characters take 2 ms, and ambiguous grammars take more with each
# token.
SECONDS_PER_TOKEN = 0.003
SECONDS_AHEAD = 0.25


class Allowance:
    """Time limit of the constraints of one request, shared by its n answers."""

    def __init__(self) -> None:
        self._ahead = 0.0  # seconds above the limit for the tokens so far

    def spend(self, seconds: float, n_tokens: int = 0) -> None:
        """Add CPU time. Raise RequestError if the grammar uses too much time of the thread that serves all requests."""
        self._ahead += seconds
        if self._ahead > SECONDS_AHEAD:
            raise RequestError(
                "the grammar takes too long to find the allowed tokens; make it less ambiguous, or its literals"
                " shorter",
                code="grammar_too_slow",
            )
        self._ahead = max(0.0, self._ahead - SECONDS_PER_TOKEN * n_tokens)


class Constraint:
    """State of a sequence in a grammar. Not thread-safe."""

    def __init__(
        self, matcher: LLMatcher, n_words: int, n_vocab: int, allowance: Allowance, unique: UniqueItems | None = None
    ) -> None:
        self._matcher = matcher
        self.allowance = allowance
        self._n_vocab = n_vocab
        self._unique = unique
        self._words = np.zeros(n_words, np.uint32)  # bit i of word j is token 32 j + i
        self._pointer = self._words.ctypes.data
        self._has_words = False

    def words(self) -> NDArray[np.uint32]:
        """Return the bit mask of allowed tokens, 32 per word, lowest bit first. `accept` invalidates the buffer.

        Stop tokens are allowed if the grammar may end here.
        """
        if not self._has_words:
            # A failed matcher returns a mask of stop tokens, so check its error each time.
            begin = time.thread_time()
            self._matcher.unsafe_compute_mask_ptr(self._pointer, self._words.nbytes)
            self._check()
            if self._unique is not None:
                self._unique.limit(self._matcher, self._words)
            self.allowance.spend(time.thread_time() - begin)
            self._has_words = True
        return self._words

    def accept(self, token: int) -> None:
        """Advance by a token. Raise RequestError if it is not allowed."""
        if not 0 <= token < self._n_vocab:
            raise RequestError(f"token {token} is not an id of this vocabulary (0 to {self._n_vocab - 1})")
        if self._matcher.is_stopped():
            # Only a stop token may follow, and it does not change the state.
            if self.words()[token >> 5] >> np.uint32(token & 31) & np.uint32(1) == 0:
                raise RequestError(f"token {token} comes after the end of the grammar")
            return
        self._has_words = False
        begin = time.thread_time()
        if not self._matcher.consume_token(token):
            raise RequestError(f"the grammar cannot accept token {token}: {explain(self._matcher.get_error())}")
        if self._unique is not None:
            self._unique.accept(self._matcher, token)
        self.allowance.spend(time.thread_time() - begin, n_tokens=1)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"the grammar cannot continue: {explain(self._matcher.get_error())}")
