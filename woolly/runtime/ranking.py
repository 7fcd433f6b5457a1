"""The Ranking: the largest logits of each row of output, for those who need not see all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from woolly.runtime.batch import Batch
from woolly.runtime.state import State

__all__ = ["MOST_RANKED", "Ranking", "Ranks", "as_ranks"]

Float32 = npt.NDArray[np.float32]

# Most logits of a row that are ranked.
MOST_RANKED = 256


@dataclass(frozen=True)
class Ranking:
    """What `Ranks.rank` gives. A row has one ranking, whatever it is computed with."""

    ids: npt.NDArray[np.int32]  # [n_output, n]: tokens, the largest logit first, equal ones by the lowest id
    logits: Float32  # [n_output, n]
    sums: npt.NDArray[np.float64]  # [n_output]: of exp(logit - largest logit) over the whole row
    is_sound: npt.NDArray[np.bool_]  # [n_output]: if not, the row holds NaN or plus infinity, and all else is void
    # Whole rows from a first to a last (exclusive) of the output, [n, n_vocab], until the next run or call.
    rows: Callable[[int, int], Float32]


@runtime_checkable
class Ranks(Protocol):
    """A program that can rank logits where it computes them, so that most of them need not come to the host."""

    def rank(
        self, batch: Batch, state: State, n: int, first: int = 0, meanwhile: Callable[[], None] | None = None
    ) -> Ranking:
        """Runs steps from `first` on, as `Program.run`; gives at least the n largest logits of each row of output.

        n is at most MOST_RANKED. A vocabulary that is smaller is ranked as a whole. `meanwhile` is called once, when
        the device has all that it needs, so that the host works while the device does.
        """


def as_ranks(program: object) -> Ranks | None:
    """The program itself, if it can rank logits."""
    # Not isinstance: of a protocol that takes as long as choosing a token.
    return cast(Ranks, program) if hasattr(program, "rank") else None
