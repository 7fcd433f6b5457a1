"""FastChain: top_k, top_p, min_p, temperature and draw in one function, for a row or a batch."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import neg
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import draw, weigh
from woolly.sampling.choosers import Draw, Greedy
from woolly.sampling.samplers.min_p import MinP
from woolly.sampling.samplers.temperature import Temperature
from woolly.sampling.samplers.top_k import TopK
from woolly.sampling.samplers.top_p import TopP

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.registry import SamplerStep

Float32 = npt.NDArray[np.float32]

_FEW = 12  # smaller batches are faster row by row


class FastChain:
    """Chooses the same tokens as the separate steps, in a third of the time.

    Sampling time matters when a GPU computes 64 sequences at a time. Intermediate candidates are not stored.
    """

    def __init__(self, top_k: TopK, top_p: TopP | None, min_p: MinP | None, heat: Temperature, chooser: Draw) -> None:
        self.k = top_k.k
        self.p = math.inf if top_p is None else float(top_p.p)
        self.log_p = -math.inf if min_p is None else float(min_p.log_p)
        self.min_keep = max(0 if step is None else step.min_keep for step in (top_p, min_p))
        self.temperature = heat.temperature
        self.settings = self.k, self.min_keep, self.p, self.log_p, float(self.temperature)
        self.random = chooser.random

    @classmethod
    def of(cls, steps: Sequence[SamplerStep], chooser: object) -> FastChain | None:
        """Return the fast chain of these steps, or None for other steps or another order."""
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
        """Choose a token, with one random number like `Draw`."""
        candidates.keep_largest(self.k)
        return candidates.id(self.place(candidates.logits))

    def place(self, logits: Float32) -> int:
        """Return the drawn index among at least k top logits in descending order. The first logit must be finite."""
        logits = logits[: self.k]
        top = logits[0]
        if self.p <= 1.0:
            weights = np.empty_like(logits)
            weights /= np.float32(weigh(logits, float(top), weights))
            n = bisect_left(weights.cumsum().tolist(), self.p) + 1
            logits = logits[: n if n > self.min_keep else self.min_keep]
        if self.log_p > -math.inf:
            n = bisect_right(logits.tolist(), -float(top + np.float32(self.log_p)), key=neg)
            logits = logits[: n if n > self.min_keep else self.min_keep]
        u = self.random.uniform64()
        logits = logits / self.temperature
        if not math.isfinite(logits[0]):
            return 0  # the temperature is so low that only the largest logit remains
        return draw(logits, float(logits[0]), u)


def choose_batch(
    chains: Sequence[FastChain | Greedy | None], ids: npt.NDArray[np.int32], logits: Float32, is_whole: bool
) -> list[int | None]:
    """Return the token of each row, or None for rows without a chain and rows that need individual sampling.

    `is_whole`: the ranking has the complete vocabulary. Rows must be valid.
    """
    tokens: list[int | None] = [None] * len(chains)
    usual: list[tuple[int, FastChain]] = []
    for row, (chain, top, token) in enumerate(zip(chains, logits[:, 0].tolist(), ids[:, 0].tolist(), strict=True)):
        if chain is None or top == -math.inf:
            continue
        if isinstance(chain, Greedy):
            tokens[row] = token
        elif chain.k <= logits.shape[1] or is_whole:
            usual.append((row, chain))
    if not usual:
        return tokens
    with np.errstate(all="ignore"):
        if len(usual) < _FEW:
            places = [chain.place(logits[row]) for row, chain in usual]
        else:
            used = logits if len(usual) == len(chains) else logits[[row for row, _ in usual]]
            places = _draw([chain for _, chain in usual], used)
    for (row, _), place in zip(usual, places, strict=True):
        tokens[row] = ids.item(row, place)
    return tokens


def _draw(chains: Sequence[FastChain], logits: Float32) -> list[int]:
    """Return the drawn index of each chain in its row of descending logits, like `FastChain.choose`.

    Sums run along each row from first to last, so other rows have no influence.
    """
    rows = np.arange(len(chains))
    kinds = {chain.settings for chain in chains}  # usually a single setting, which then applies to all rows
    settings = np.array(list(kinds) if len(kinds) == 1 else [chain.settings for chain in chains]).T
    ks, least = settings[:2].astype(np.intp)
    shares, lows, heats = settings[2:, :, None].astype(np.float32)
    n = np.minimum(ks, logits.shape[1])  # remaining candidates of each row
    logits = logits[:, : n.max()]
    weights = _powers(logits)
    weights /= weights.cumsum(axis=1)[rows, n - 1][:, None]
    n = np.minimum(n, np.maximum((weights.cumsum(axis=1) < shares).sum(axis=1) + 1, least))
    n = np.minimum(n, np.maximum((logits >= logits[:, :1] + lows).sum(axis=1), least))
    heated = logits[:, : n.max()] / heats
    sums = _powers(heated).cumsum(axis=1, dtype=np.float64)
    targets = np.array([chain.random.uniform64() for chain in chains]) * sums[rows, n - 1]
    places = (sums < targets[:, None]).sum(axis=1)
    # The temperature may be so low that only the largest logit remains.
    drawn: list[int] = np.where(np.isfinite(heated[:, 0]), places, 0).tolist()
    return drawn


def _powers(logits: Float32) -> Float32:
    """Return exp(logit - first logit) for each row."""
    below = logits - logits[:, :1]
    out = np.empty_like(below)
    weigh(below.reshape(-1), 0.0, out.reshape(-1))
    return out
