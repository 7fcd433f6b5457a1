"""A program that keeps pages and slots and whose logits tell whether each of them held what it should.

It computes nothing but sums of what it finds: of the tokens in the pages of a sequence, and of the state in its slot.
A token that is missing, twice, or another's changes every logit after it.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from woolly.plan import Paged, Slot
from woolly.runtime import PAGE_SIZE, CancelledRun
from woolly.runtime.program import About, WeightStats

_PRIME = (1 << 31) - 1


class HybridState:
    """Tokens in pages, also in those of a window, and a rolling sum in each slot."""

    def __init__(self, n_pages, n_slots, n_window):
        self.n_pages, self.n_slots = n_pages, n_slots
        self.pages = np.full((n_pages, PAGE_SIZE), -1, np.int64)
        self.window = np.full((n_window, PAGE_SIZE), -1, np.int64)
        self.slots = np.full(n_slots, -1, np.int64)
        self.page_bytes = self.pages[0].nbytes

    @property
    def n_bytes(self):
        return self.pages.nbytes + self.slots.nbytes


class HybridProgram:
    """Runs a plan of any model as if it had recurrent state, or entries with a window, beside its pages."""

    def __init__(self, plan, max_rows=512, window=0, n_slots=1):
        more = [Slot(1)] * n_slots + [Paged(1, 1, 1, window=window)] * (window > 0)
        self.plan = self.running_plan = replace(plan, state=(*plan.state, *more))
        self.window = window
        self.max_rows = max_rows
        self.about = About("hybrid", None, 1, 0)
        self.n_rows = self.n_runs = 0
        self.fails = []  # errors that the next runs raise after they have written half of what they write
        weights = np.random.RandomState(0)
        self._table = weights.randint(1, _PRIME, (64, plan.width))

    def load_weights(self):
        pass

    def close(self):
        pass

    def cancel(self):
        pass

    def timed(self):
        return nullcontext([])

    def weight_stats(self):
        return WeightStats(0, 0, 0, 0)

    def new_state(self, n_pages, n_slots=0, window_pages=()):
        return HybridState(n_pages, n_slots, *window_pages or [n_pages])

    def run(self, batch, state, first=0, last=None):
        if self.plan.slots:
            batch.check_slots(state.n_slots)
        self.n_runs += 1
        self.n_rows += batch.n_rows
        wanted = set(batch.output_rows.tolist())
        snapshots = dict(batch.snapshots.tolist())
        sums = {}
        if self.fails and self.plan.slots:
            state.slots[batch.slots_out] = state.slots[batch.snapshots[:, 1]] = -7
            raise self.fails.pop()
        for s in range(batch.n_sequences):
            begin, end = batch.offsets[s], batch.offsets[s + 1]
            slot = batch.slots_in[s] if self.plan.slots else -1
            running = 1 if slot < 0 else int(state.slots[slot])
            for row in range(begin, end):
                token, position = int(batch.tokens[row]), int(batch.positions[row])
                state.pages[batch.pages[s, position // PAGE_SIZE], position % PAGE_SIZE] = token
                in_window = batch.table(0 if self.window else None)[s]
                assert in_window[position // PAGE_SIZE] >= 0
                state.window[in_window[position // PAGE_SIZE], position % PAGE_SIZE] = token
                running = (running * 31 + token + 7) % _PRIME
                if row in wanted:
                    past = state.pages[batch.pages[s, : position // PAGE_SIZE + 1]].reshape(-1)[: position + 1]
                    weights = np.arange(1, position + 2) % 1009 + 1
                    seen = [
                        int(state.window[in_window[p // PAGE_SIZE], p % PAGE_SIZE])
                        for p in range(max(0, position - self.window + 1), position + 1)
                    ]
                    assert not self.window or seen == past[-len(seen) :].tolist()
                    state_sum = running if self.plan.slots else 1
                    sums[row] = (state_sum, int((past * weights).sum()))
                if row in snapshots:
                    state.slots[snapshots[row]] = running
            if self.plan.slots:
                state.slots[batch.slots_out[s]] = running
        rows = [self._logits(*sums[row]) for row in batch.output_rows.tolist()]
        return np.array(rows, np.float32).reshape(len(rows), self.plan.width)

    def _logits(self, running, past):
        row = self._table[running % 64] * (1 + past % 8191) + running
        return (row % 4093).astype(np.float32) / 512.0


class Interrupted(CancelledRun):
    """A late cancel, which the engine answers by running the same batch again."""
