"""Perplexity of a model on a text.

The text is split into independent windows of `ctx` tokens. Only the second half of a window is scored, so every scored
token has at least half a window of context. If the vocabulary adds a BOS token, BOS replaces the first token of each
window. Results are comparable with llama.cpp's perplexity tool, which has the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.engine.input_processor import check_next_token
from woolly.engine.loading.adapters import named_adapters
from woolly.engine.loading.context_length import context_limit
from woolly.engine.loading.load import LoadedModel, load_model
from woolly.errors import RequestError
from woolly.gguf.overlay import Overlay
from woolly.llm.load_checks import overrides_of
from woolly.llm.model_options import ModelOptions
from woolly.machine.cores import default_threads
from woolly.measure.slot_rotation import SlotRotation
from woolly.runtime import Batch, Options, pages_for

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeanEstimate:
    """Mean with its standard error."""

    mean: float
    error: float


def mean_and_error(values: Float64) -> MeanEstimate:
    """Estimate the mean of independent values. With fewer than two values, the error is NaN."""
    n = len(values)
    return MeanEstimate(float(values.mean()), float(values.std() / math.sqrt(n - 1)) if n > 1 else math.nan)


class Scorer:
    """Scores the tokens of a text with a model, window by window."""

    def __init__(
        self,
        model: str,
        ctx: int,
        *,
        threads: int | None,
        kv_type: str | None,
        backend: str,
        device: str | None = None,
        gpu_layers: int | str | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the model. `changes` are adapters and metadata of ModelOptions."""
        given = ModelOptions(**changes or {})
        options = Options(threads=threads, kv_type=kv_type, device=device, gpu_layers=gpu_layers)
        self.loaded: LoadedModel = load_model(
            model,
            backend,
            options,
            "logits",
            ctx=ctx,
            adapters=named_adapters(given.adapters),
            metadata=overrides_of(given),
        )
        try:
            check_next_token(self.loaded.program.plan)
            self.tokenizer = self.loaded.tokenizer
            if isinstance(self.loaded.file.metadata, Overlay):
                self.loaded.file.metadata.check_read()
            limit = context_limit(self.loaded.file, self.loaded.program.plan)
            if not 4 <= ctx <= limit:
                raise RequestError(f"ctx is {ctx}; expected an integer from 4 to {limit}", field="ctx")
            self.ctx = ctx
            self._pages = range(pages_for(ctx))
            self._slots = SlotRotation(self.loaded.program.plan)
            self._state = self.loaded.program.new_state(len(self._pages), self._slots.n_slots)
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
        """Tokenize a text, with BOS and EOS if the vocabulary adds them. Control tokens are plain text."""
        return self.tokenizer.encode(text, add_special=True, parse_special=False)

    def logits(self, window: Sequence[int]) -> Iterator[tuple[int, Float32]]:
        """Yield (position of the first row, logits) for parts of the second half. A yield invalidates earlier rows."""
        tokens = list(window)
        if self.tokenizer.add_bos and self.tokenizer.bos_id is not None:
            tokens[0] = self.tokenizer.bos_id
        program = self.loaded.program
        first_scored = self.ctx // 2
        for first in range(0, self.ctx, program.max_rows):
            part = tokens[first : first + program.max_rows]
            # The window's last token does not predict a scored token.
            wanted = range(max(0, first_scored - first), min(len(part), self.ctx - 1 - first))
            rows_wanted = list(wanted) or [len(part) - 1]
            batch = Batch.of([(part, first, self._pages)], rows_wanted, slots=self._slots.next([0], first))
            rows = program.run(batch, self._state)
            if len(wanted):
                yield first + wanted.start, rows

    def surprise(self, window: Sequence[int]) -> Float64:
        """Return the negative log-probability of each scored token of a window, in nats."""
        parts = []
        for first, rows in self.logits(window):
            following = np.asarray(window[first + 1 : first + 1 + len(rows)])
            parts.append(np.concatenate(self.spread(len(rows), lambda part: _surprise(rows[part], following[part]))))  # noqa: B023
        return np.concatenate(parts)

    def spread(self, n_rows: int, job: Callable[[slice], Any]) -> list[Any]:
        """Run a job on chunks of the rows, using all threads. Return the results in order."""
        step = max(1, -(-n_rows // (4 * self._n_workers)))
        return list(self._pool.map(job, [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]))


def windows_of(tokens: Sequence[int], ctx: int, chunks: int | None) -> list[Sequence[int]]:
    """Return the complete windows of a text, at most `chunks`. Raise RequestError if there are fewer than two."""
    if chunks is not None and chunks < 1:
        raise RequestError(f"chunks is {chunks}; expected at least 1", field="chunks")
    if len(tokens) < 2 * ctx:
        raise RequestError(
            f"the text has {len(tokens)} tokens, but a context of {ctx} needs at least {2 * ctx}; use a longer text"
            + (f", or a ctx of at most {len(tokens) // 2}" if len(tokens) > 3 else ""),
            names=("ctx",),
        )
    n = len(tokens) // ctx
    return [tokens[i * ctx : (i + 1) * ctx] for i in range(n if chunks is None else min(n, chunks))]


def log_total(rows: Float32) -> Float64:
    """Return log-sum-exp of each row."""
    top = rows.max(axis=1, keepdims=True)
    total: Float64 = np.exp(rows - top).sum(axis=1, dtype=np.float64)
    out: Float64 = np.log(total) + top[:, 0].astype(np.float64)
    return out


def _surprise(rows: Float32, following: npt.NDArray[np.int64]) -> Float64:
    out: Float64 = log_total(rows) - rows[np.arange(len(rows)), following].astype(np.float64)
    return out
