"""PoolingJob: the texts of a call, and the result row of each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.engine.pooling.pooler import Pooler

Float32 = npt.NDArray[np.float32]


class PoolingJob:
    """Texts to embed or score. The engine thread fills `rows` and calls the listeners.

    Texts are processed in descending order of length, so that a batch has texts of similar lengths.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        pooler: Pooler,
        *,
        on_progress: Callable[[int], None] | None = None,
        n_cut: Sequence[int] = (),
    ) -> None:
        """`on_progress` receives the number of finished texts. `n_cut` is the number of truncated tokens per text.

        `n_cut` is a lower bound for text that was truncated before tokenization.
        """
        self.texts = [tuple(map(int, text)) for text in texts]
        self.pooler = pooler
        self.rows: Float32 = np.zeros((len(texts), pooler.width), np.float32)
        self.tables: dict[int, Float32] = {}  # rows of texts by index, for pooling "none"
        self.n_cut = tuple(n_cut) or (0,) * len(texts)
        self.n_done = 0
        self.n_batches = 0
        self.error: BaseException | None = None
        self.is_unwanted = False  # cancelled by the client
        self.is_over = False
        self.on_progress = on_progress
        self.on_end: Callable[[], None] | None = None  # called once by the engine thread
        self.order = sorted(range(len(texts)), key=lambda index: len(self.texts[index]))  # the last is next

    @property
    def n_tokens(self) -> int:
        """Total number of tokens."""
        return sum(map(len, self.texts))

    def end(self, error: BaseException | None = None) -> None:
        """Mark the job as finished and wake its caller."""
        if not self.is_over:
            self.error = error
            self.is_over = True
            if self.on_end is not None:
                self.on_end()

    def result(self) -> Float32:
        """Return the rows, or raise the error of the job."""
        self._check()
        return self.rows

    def all_rows(self) -> list[Float32]:
        """Return the unpooled rows of each text, or raise the error of the job."""
        self._check()
        return [self.tables[index] for index in range(len(self.texts))]

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self.n_done < len(self.texts):
            raise RequestError("the texts were not processed: the call was cancelled, or the LLM was closed")
