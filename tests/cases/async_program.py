"""A program that goes on with tokens that it takes itself, as a GPU does; computed at once."""

from dataclasses import replace

import numpy as np

from tests.cases.heads import Ranking256
from woolly.runtime import OverwrittenRows


def taken(pick, ids, logits):
    """The token that a device takes from a row of a ranking."""
    if pick["k"] == 0:
        return ids[0]
    logits = logits[: pick["k"]]
    weights = np.exp(logits - logits[0])
    n = max(int(((weights / weights.sum()).cumsum() < pick["p"]).sum()) + 1, pick["min_keep"])
    n = min(n, max(int((logits >= logits[0] + pick["log_p"]).sum()), pick["min_keep"]), len(logits))
    heated = logits[:n] / pick["temperature"]
    sums = np.exp(heated - heated[0]).astype(np.float64).cumsum()
    return ids[min(int((sums < pick["u"] * sums[-1]).sum()), n - 1)]


class AsyncProgram(Ranking256):
    """`is_wrong` says of each token that it takes whether it is another; `n_wanted` counts runs that were used."""

    def __init__(self, program, is_wrong=lambda i: False):
        super().__init__(program)
        self.is_wrong = is_wrong
        self.queued = None  # a batch and its ranking
        self.n_taken = self.n_wanted = 0
        self.unsound = set()  # numbers of runs whose rows must be looked at as a whole
        self.n_runs = 0

    def has_queued(self, batch):
        return self.queued is not None and self.queued[0] is batch

    def run(self, batch, state, first=0, last=None):
        self.queued = None
        return self._program.run(batch, state, first, last)

    def rank(self, batch, state, n, first=0, meanwhile=None, next_step=None):
        if self.has_queued(batch):
            self.n_wanted += 1
            ranking = self.queued[1]
        else:
            ranking = self._ranked(batch, state, n, first)
        self.queued = None
        if next_step is not None:
            batch = next_step.batch
            for i, pick in enumerate(next_step.picks):
                token = taken(pick, ranking.ids[pick["row"]], ranking.logits[pick["row"]])
                batch.tokens[i] = (token + 1) % 100 if self.is_wrong(self.n_taken) else token
                self.n_taken += 1
            self.queued = batch, self._ranked(batch, state, next_step.n)
            ranking = replace(ranking, rows=_lost)
        if meanwhile is not None:
            meanwhile()
        return ranking

    def _ranked(self, batch, state, n, first=0):
        ranking = super().rank(batch, state, n, first)
        self.n_runs += 1
        tokens = batch.tokens[batch.output_rows].copy()
        return replace(ranking, tokens=tokens, is_sound=ranking.is_sound & (self.n_runs not in self.unsound))


def _lost(first, last):
    raise OverwrittenRows("another run has overwritten the logits")
