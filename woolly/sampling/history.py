"""History of a sequence's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class History:
    """Tokens of a sequence, starting with the prompt, in an array that grows."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = np.empty(len(prompt) + 256, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._n = len(prompt)

    def __len__(self) -> int:
        return self._n

    def append(self, token: int) -> None:
        """Append a token."""
        if self._n == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._n] = token
        self._n += 1

    def last(self, n: int) -> npt.NDArray[np.int32]:
        """Return a view of the last n tokens; -1 for all."""
        return self._tokens[0 if n < 0 else max(0, self._n - n) : self._n]
