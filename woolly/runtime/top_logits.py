"""Ranking: top-n logits of each output row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from woolly.errors import PlanError

if TYPE_CHECKING:
    from woolly.runtime.batch import Batch
    from woolly.runtime.state import State

Float32 = npt.NDArray[np.float32]

# Maximum n of the top-n logits.
MAX_RANKED = 256


# How a device samples from a row of a ranking: the parameters of a common sampler chain, and the random number.
PICK = np.dtype(
    [
        ("u", np.float64),
        ("p", np.float32),  # top_p; infinite: all
        ("log_p", np.float32),  # log of min_p; minus infinity: all
        ("temperature", np.float32),
        ("k", np.int32),  # top_k; 0: greedy
        ("min_keep", np.int32),
        ("row", np.int32),  # row of the ranking
    ]
)


class OverwrittenRows(PlanError):  # noqa: N818 - the name says what became of the rows
    """Complete rows of logits were requested after another run has overwritten them."""


@dataclass(frozen=True)
class Ranking:
    """Result of `Ranks.rank`. The ranking of a row does not depend on the other rows of its batch."""

    ids: npt.NDArray[np.int32]  # [n_output, n]: tokens in descending order of logits, ties by the lowest id
    logits: Float32  # [n_output, n]
    sums: npt.NDArray[
        np.float64
    ]  # [n_output]: sum of exp(logit - largest logit) over the entire row; NaN: not computed
    is_sound: npt.NDArray[
        np.bool_
    ]  # [n_output]: False if the row has NaN or plus infinity; its other values are then invalid
    # rows(first, last): complete output rows first to last (exclusive), [n, n_vocab], valid until the next run or call.
    rows: Callable[[int, int], Float32]  # LostRows if another run is under way
    tokens: npt.NDArray[np.int32] | None = None  # [n_output]: input token of each row, if the device sampled it

    def of(self, rows: Sequence[int]) -> Ranking:
        """Return the ranking of some rows, in ascending order."""
        if len(rows) == len(self.ids):
            return self
        places = np.array(rows, np.intp)
        return Ranking(
            self.ids[places],
            self.logits[places],
            self.sums[places],
            self.is_sound[places],
            lambda first, last: np.concatenate([self.rows(i, i + 1).copy() for i in rows[first:last]]),
            None if self.tokens is None else self.tokens[places],
        )


@dataclass(frozen=True)
class NextStep:
    """Predicted next batch. The device samples its tokens from the ranking of the current one."""

    batch: Batch  # one row per sequence; its tokens are not known yet
    picks: npt.NDArray[np.void]  # [n_rows] of PICK
    n: int  # number of logits to rank


@runtime_checkable
class Ranks(Protocol):
    """A program that ranks logits on the device, so that only the top n are copied to the host."""

    def rank(
        self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Ranking:
        """Run steps from `first` on, as `Program.run`, and return at least the top n logits of each output row.

        n is at most MAX_RANKED. If the vocabulary is smaller than n, all logits are ranked. `meanwhile` is called once,
        when the device has all its inputs, so that host and device work in parallel.
        """


@runtime_checkable
class AsyncRanks(Ranks, Protocol):
    """Program whose device samples and runs the next step while the host processes the current one."""

    def rank(
        self,
        batch: Batch,
        state: State,
        n: int,
        first: int = 0,
        meanwhile: Callable[[], None] | None = None,
        next_step: NextStep | None = None,
    ) -> Ranking:
        """Rank as `Ranks.rank`, then queue `next_step` if possible.

        For a queued batch (`has_queued`), return the ranking of the queued run: its n may differ, and
        `Ranking.tokens` has the tokens that the device sampled.
        """

    def has_queued(self, batch: Batch) -> bool:
        """True if the batch is the last one queued on the device."""


def as_async_ranks(program: object) -> AsyncRanks | None:
    """Return the program if it supports async scheduling, else None."""
    return cast(AsyncRanks, program) if hasattr(program, "has_queued") else None


def as_ranks(program: object) -> Ranks | None:
    """Return the program if it can rank logits, else None."""
    # Not isinstance: with a protocol, that takes as long as sampling a token.
    return cast(Ranks, program) if hasattr(program, "rank") else None
