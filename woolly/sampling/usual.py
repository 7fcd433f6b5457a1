"""The usual chain in one function: top_k, top_p, min_p, a temperature and a draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from woolly._native import draw, weigh
from woolly.sampling.candidates import Candidates
from woolly.sampling.choosers import Draw
from woolly.sampling.registry import Step
from woolly.sampling.samplers.min_p import MinP
from woolly.sampling.samplers.temperature import Temperature
from woolly.sampling.samplers.top_k import TopK
from woolly.sampling.samplers.top_p import TopP

__all__ = ["UsualChain"]


class UsualChain:
    """Takes the token that its steps would take one after another, in a third of their time.

    That time counts where a GPU computes 64 sequences in the time of one. What the steps would leave is not kept.
    """

    def __init__(self, top_k: TopK, top_p: TopP | None, min_p: MinP | None, heat: Temperature, chooser: Draw) -> None:
        self._k = top_k.k
        self._p = None if top_p is None else top_p.p
        self._log_p = None if min_p is None else min_p.log_p
        self._min_keep = max(0 if step is None else step.min_keep for step in (top_p, min_p))
        self._temperature = heat.temperature
        self._random = chooser.random

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
        candidates.keep_largest(self._k)
        logits = candidates.logits
        if self._p is not None:
            weights = np.empty_like(logits)
            weights /= np.float32(weigh(logits, float(logits[0]), weights))
            n = int(weights.cumsum().searchsorted(self._p)) + 1
            logits = logits[: n if n > self._min_keep else self._min_keep]
        if self._log_p is not None:
            n = int(np.count_nonzero(logits >= logits[0] + self._log_p))
            logits = logits[: n if n > self._min_keep else self._min_keep]
        u = self._random.uniform64()
        logits = logits / self._temperature
        top = float(logits[0])
        if not math.isfinite(top):
            return candidates.id(0)  # a temperature so small that only the largest remains
        place = draw(logits, top, u)
        return candidates.id(place if logits[place] > -math.inf else 0)
