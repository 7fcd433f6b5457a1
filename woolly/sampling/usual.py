"""The usual chain in one function: top_k, top_p, min_p, a temperature and a draw; for one row, or for many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from woolly._native import draw, weigh
from woolly.sampling.candidates import Candidates
from woolly.sampling.choosers import Draw, Greedy
from woolly.sampling.registry import Step
from woolly.sampling.samplers.min_p import MinP
from woolly.sampling.samplers.temperature import Temperature
from woolly.sampling.samplers.top_k import TopK
from woolly.sampling.samplers.top_p import TopP

__all__ = ["UsualChain", "choose_together"]

Float32 = npt.NDArray[np.float32]


class UsualChain:
    """Takes the token that its steps would take one after another, in a third of their time.

    That time counts where a GPU computes 64 sequences in the time of one. What the steps would leave is not kept.
    """

    def __init__(self, top_k: TopK, top_p: TopP | None, min_p: MinP | None, heat: Temperature, chooser: Draw) -> None:
        self.k = top_k.k
        self.p = None if top_p is None else top_p.p
        self.log_p = None if min_p is None else min_p.log_p
        self.min_keep = max(0 if step is None else step.min_keep for step in (top_p, min_p))
        self.temperature = heat.temperature
        self.random = chooser.random

    @classmethod
    def of(cls, steps: Sequence[Step], chooser: object) -> UsualChain | None:
        """None if these are other steps, or stand in another order."""
        kinds = {type(step): step for step in steps}
        top_k, top_p, min_p, heat = (kinds.get(kind) for kind in (TopK, TopP, MinP, Temperature))
        if list(steps) != [step for step in (top_k, top_p, min_p, heat) if step is not None]:
            return None
        if not (isinstance(top_k, TopK) and isinstance(heat, Temperature) and isinstance(chooser, Draw)):
            return None
        assert top_p is None or isinstance(top_p, TopP)
        assert min_p is None or isinstance(min_p, MinP)
        return cls(top_k, top_p, min_p, heat, chooser) if heat.is_fixed and top_k.k > 0 else None

    def choose(self, candidates: Candidates) -> int:
        """One u per token, as `Draw`."""
        candidates.keep_largest(self.k)
        logits = candidates.logits
        if self.p is not None:
            weights = np.empty_like(logits)
            weights /= np.float32(weigh(logits, float(logits[0]), weights))
            n = int(weights.cumsum().searchsorted(self.p)) + 1
            logits = logits[: n if n > self.min_keep else self.min_keep]
        if self.log_p is not None:
            n = int(np.count_nonzero(logits >= logits[0] + self.log_p))
            logits = logits[: n if n > self.min_keep else self.min_keep]
        u = self.random.uniform64()
        logits = logits / self.temperature
        top = float(logits[0])
        if not math.isfinite(top):
            return candidates.id(0)  # a temperature so small that only the largest remains
        place = draw(logits, top, u)
        return candidates.id(place if logits[place] > -math.inf else 0)


def choose_together(
    chains: Sequence[UsualChain | Greedy | None], ids: npt.NDArray[np.int32], logits: Float32, is_whole: bool
) -> list[int | None]:
    """The token of each row of a ranking; None for rows without a chain, and those that must be looked at one by one.

    `is_whole` says whether the ranking has the whole vocabulary. Rows must be sound.
    """
    places: list[int | None] = [None] * len(chains)
    usual: list[tuple[int, UsualChain]] = []
    for row, (chain, top) in enumerate(zip(chains, logits[:, 0].tolist(), strict=True)):
        if chain is None or top == -math.inf:
            continue
        if isinstance(chain, Greedy):
            places[row] = 0
        elif chain.k <= logits.shape[1] or is_whole:
            usual.append((row, chain))
    if usual:
        rows = [row for row, _ in usual]
        with np.errstate(all="ignore"):
            drawn = _draw([chain for _, chain in usual], logits if len(rows) == len(chains) else logits[rows])
        for row, place in zip(rows, drawn, strict=True):
            places[row] = place
    return [None if place is None else int(ids[row, place]) for row, place in enumerate(places)]


def _draw(chains: Sequence[UsualChain], logits: Float32) -> list[int]:
    """The place that each chain takes in its row of logits, the largest first, as `UsualChain.choose` does.

    Sums run along each row from first to last, so that the rows beside it change nothing.
    """
    rows = np.arange(len(chains))
    n = np.array([min(chain.k, logits.shape[1]) for chain in chains])  # how many are left of each row
    least = np.array([chain.min_keep for chain in chains])
    shares = np.array([np.inf if chain.p is None else chain.p for chain in chains], np.float32)[:, None]
    lows = np.array([-np.inf if chain.log_p is None else chain.log_p for chain in chains], np.float32)
    heats = np.array([chain.temperature for chain in chains], np.float32)[:, None]
    logits = logits[:, : n.max()]
    columns = np.arange(logits.shape[1])
    weights = _powers(logits)
    weights /= weights.cumsum(axis=1)[rows, n - 1][:, None]
    n = np.minimum(n, np.maximum((weights.cumsum(axis=1) < shares).sum(axis=1) + 1, least))
    likely = (logits >= (logits[:, 0] + lows)[:, None]) & (columns < n[:, None])
    n = np.minimum(n, np.maximum(likely.sum(axis=1), least))
    heated = logits / heats
    sums = _powers(heated).astype(np.float64).cumsum(axis=1)
    targets = np.array([chain.random.uniform64() for chain in chains]) * sums[rows, n - 1]
    places = (sums < targets[:, None]).sum(axis=1)
    # A temperature so small that only the largest remains; u was 0 and the first is ruled out.
    is_drawn = np.isfinite(heated[:, 0]) & (heated[rows, np.minimum(places, n - 1)] > -np.inf)
    return [int(place) for place in np.where(is_drawn, places, 0)]


def _powers(logits: Float32) -> Float32:
    """exp of what each logit lies below the first of its row."""
    below = logits - logits[:, :1]
    out = np.empty_like(below)
    weigh(below.reshape(-1), 0.0, out.reshape(-1))
    return out
