"""Heads of rows of logits, made by NumPy; and a program that gives them in place of rows."""

import numpy as np

from woolly.runtime import Ranking
from woolly.sampling.top_logits import TopLogits


def head_of(row, n):
    """The n likeliest tokens of a row, as a program that ranks gives them."""
    ids = np.argsort(-row, kind="stable")[:n].astype(np.int32)
    with np.errstate(all="ignore"):
        total = float(np.exp(row.astype(np.float64) - row.max()).sum())
    is_sound = bool((row <= np.finfo(np.float32).max).all())
    return TopLogits(ids, row[ids], len(row), total, is_sound, row.copy)


class Ranking256:
    """A program around another. `n_rows` counts the whole rows that were asked for, `n_heads` the heads."""

    def __init__(self, program):
        self._program = program
        self.n_heads = self.n_rows = 0

    def __getattr__(self, name):
        return getattr(self._program, name)

    def rank(self, batch, state, n, first=0, meanwhile=None):
        assert 0 < n <= 256
        if meanwhile is not None:
            meanwhile()
        logits = self._program.run(batch, state, first).copy()
        heads = [head_of(row, n) for row in logits]
        self.n_heads += len(heads)

        def rows(begin, end):
            self.n_rows += end - begin
            return logits[begin:end]

        return Ranking(
            np.array([head.ids for head in heads], np.int32).reshape(len(heads), -1),
            np.array([head.logits for head in heads], np.float32).reshape(len(heads), -1),
            np.array([head.total for head in heads], np.float64),
            np.array([head.is_sound for head in heads], bool),
            rows,
        )
