"""Importance matrix: sums of squares of each weight's inputs over a calibration text.

A window of the text is one batch, and sums are accumulated in row order in f64. CPU rows are bit-identical for any
number of threads, so the file is reproducible.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly.engine.input_processor import check_decoder_only
from woolly.engine.loading.context_length import context_limit
from woolly.errors import RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.gguf.overlay import Overlay, Value
from woolly.measure.slot_rotation import SlotRotation
from woolly.models import trace
from woolly.quantize.imatrix_file import ColumnSums, ImportanceMatrix
from woolly.runtime import Batch, Options, pages_for
from woolly.runtime.activation_observer import ActivationObserver
from woolly.store import resolve
from woolly.tokens import Tokenizer

Progress = Callable[[int, int], None]


class _Sums:
    """Sums of one weight."""

    def __init__(self, n_matrices: int, columns: int) -> None:
        self.sums = np.zeros((n_matrices, columns), np.float64)
        self.counts = np.zeros(n_matrices, np.int64)

    def add(self, matrix: int, x: NDArray[np.float32]) -> None:
        squares = x.astype(np.float64)
        squares *= squares
        # Added row by row, so the order does not depend on batches.
        self.sums[matrix] = np.add.reduce(np.concatenate([self.sums[matrix][None], squares]), axis=0)
        self.counts[matrix] += len(x)

    def finished(self) -> ColumnSums:
        return ColumnSums(self.sums.astype(np.float32), self.counts.astype(np.float32))


def collect_importance(
    model: str | os.PathLike[str],
    text: str,
    path: Path,
    *,
    dataset: str = "",
    ctx: int = 512,
    chunks: int | None = None,
    output: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> ImportanceMatrix:
    """Collect the matrix of a text, for `write_imatrix`. Only weights in layers are included, unless `output` is set.

    `metadata` overrides values of the file. RequestError if the text is shorter than a window of `ctx` tokens.
    """
    with open_gguf(resolve(model)) as file:
        file.overlay(metadata or {})
        collector = _Collector(file, ctx, threads, output)
        if isinstance(file.metadata, Overlay):
            file.metadata.check_read()
        tokens = collector.tokenizer.encode(text, add_special=True, parse_special=False)
        windows = [tokens[at : at + ctx] for at in range(0, len(tokens) - ctx + 1, ctx)][:chunks]
        if not windows:
            raise RequestError(
                f"the text has {len(tokens)} tokens, but a window has {ctx}; use a longer text", names=("ctx",)
            )
        for done, window in enumerate(windows):
            collector.add(window)
            if progress is not None:
                progress(done + 1, len(windows))
    entries = {name: sums.finished() for name, sums in collector.sums.items()}
    return ImportanceMatrix(path, entries, (dataset,) if dataset else (), len(windows), ctx)


class _Collector:
    def __init__(self, file: GGUFFile, ctx: int, threads: int | None, output: bool) -> None:
        plan = trace(file, "logits", None, ctx)
        check_decoder_only(plan)
        limit = context_limit(file, plan)
        if not 4 <= ctx <= limit:
            raise RequestError(f"ctx is {ctx}; expected an integer from 4 to {limit}", field="ctx")
        options = Options(threads=threads, max_rows=ctx)
        self.program = ActivationObserver(plan, file.tensors, options, "" if output else "blk.")
        self.tokenizer = Tokenizer.from_metadata(file.metadata)
        self.sums: dict[str, _Sums] = {}
        self._slots = SlotRotation(plan)
        self._pages = range(pages_for(ctx))
        self._state = self.program.new_state(len(self._pages), self._slots.n_slots)

    def add(self, window: Sequence[int]) -> None:
        tokens = list(window)
        if self.tokenizer.add_bos and self.tokenizer.bos_id is not None:
            tokens[0] = self.tokenizer.bos_id
        # Compute logits of all rows, so that the head is measured like other weights.
        batch = Batch.of([(tokens, 0, self._pages)], range(len(tokens)), slots=self._slots.next([0], 0))
        for seen in self.program.observe(batch, self._state):
            if seen.tensor not in self.sums:
                self.sums[seen.tensor] = _Sums(seen.n_matrices, seen.x.shape[-1])
            self.sums[seen.tensor].add(seen.matrix, seen.x)
