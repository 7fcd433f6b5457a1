"""Perplexity and divergence: how well a model foretells a text, and how far two models differ on it.

The text is cut into windows of `ctx` tokens, each computed on its own. The second half of each is scored, so that every
scored token has at least half a window before it. Where the vocabulary asks for a BOS token, it stands in for the first
token of each window. These are the rules of llama.cpp's tool of the same name, so figures can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.cli.sizes import counted
from woolly.cli.usage import UsageError
from woolly.engine.load import LoadedModel, context_limit, load_model
from woolly.errors import RequestError
from woolly.runtime import Batch, Options, pages_for
from woolly.runtime.threads import default_threads

__all__ = ["Estimate", "Scorer", "log_total", "mean_and_error", "windows_of"]

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    error: float


def mean_and_error(values: Float64) -> Estimate:
    """Of independent values; the error of fewer than two is not a number."""
    n = len(values)
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(n - 1)) if n > 1 else math.nan)


class Scorer:
    """A model that is asked for the likelihood of given tokens, window by window."""

    def __init__(self, model: str, ctx: int, *, threads: int | None, kv_type: str | None, backend: str) -> None:
        self.loaded: LoadedModel = load_model(model, backend, Options(threads=threads, kv_type=kv_type))
        try:
            limit = context_limit(self.loaded.file, self.loaded.program.plan)
            if not 4 <= ctx <= limit:
                raise UsageError(f"--ctx is {ctx}; this model takes a whole number from 4 to {limit}")
            self.ctx = ctx
            self.tokenizer = self.loaded.tokenizer
            self._pages = range(pages_for(ctx))
            self._state = self.loaded.program.new_state(len(self._pages))
            self._n_workers = threads or default_threads()
            self._pool = ThreadPoolExecutor(self._n_workers)
        except BaseException:
            self.loaded.close()
            raise

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        self.loaded.close()

    def tokens_of(self, text: str) -> list[int]:
        """A text as tokens, those that begin and end a text included; control tokens are plain text."""
        return self.tokenizer.encode(text, add_special=True, parse_special=False)

    def logits(self, window: Sequence[int]) -> Iterator[tuple[int, Float32]]:
        """Rows of logits of the second half, with the position of the first of them; valid until the next."""
        tokens = list(window)
        if self.tokenizer.add_bos and self.tokenizer.bos_id is not None:
            tokens[0] = self.tokenizer.bos_id
        program = self.loaded.program
        first_scored = self.ctx // 2
        for first in range(0, self.ctx, program.max_rows):
            part = tokens[first : first + program.max_rows]
            # The last token of the window has no next one to foretell.
            wanted = range(max(0, first_scored - first), min(len(part), self.ctx - 1 - first))
            batch = Batch.of([(part, first, self._pages)], list(wanted) or [len(part) - 1])
            rows = program.run(batch, self._state)
            if len(wanted):
                yield first + wanted.start, rows

    def surprise(self, window: Sequence[int]) -> Float64:
        """Negative log-probability of each scored token of a window, in nats."""
        parts = []
        for first, rows in self.logits(window):
            following = np.asarray(window[first + 1 : first + 1 + len(rows)])
            parts.append(np.concatenate(self.spread(len(rows), lambda part: _surprise(rows[part], following[part]))))  # noqa: B023
        return np.concatenate(parts)

    def spread(self, n_rows: int, job: Callable[[slice], Any]) -> list[Any]:
        """Run a job on parts of so many rows, on all threads; its results in order."""
        step = max(1, -(-n_rows // (4 * self._n_workers)))
        return list(self._pool.map(job, [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]))


def windows_of(tokens: Sequence[int], ctx: int, chunks: int | None) -> list[Sequence[int]]:
    """Whole windows of a text, at most so many; RequestError where it has fewer than two."""
    if chunks is not None and chunks < 1:
        raise UsageError(f"--chunks is {chunks}; at least 1 was expected")
    if len(tokens) < 2 * ctx:
        raise RequestError(
            f"the text has {counted(len(tokens), 'token')}, but a context of {ctx} needs at least {2 * ctx}: "
            f"give a longer text or a smaller --ctx"
        )
    n = len(tokens) // ctx
    return [tokens[i * ctx : (i + 1) * ctx] for i in range(n if chunks is None else min(n, chunks))]


def log_total(rows: Float32) -> Float64:
    """Logarithm of the sum of exponentials of each row."""
    top = rows.max(axis=1, keepdims=True)
    total: Float64 = np.exp(rows - top).sum(axis=1, dtype=np.float64)
    out: Float64 = np.log(total) + top[:, 0].astype(np.float64)
    return out


def _surprise(rows: Float32, following: npt.NDArray[np.int64]) -> Float64:
    out: Float64 = log_total(rows) - rows[np.arange(len(rows)), following].astype(np.float64)
    return out
