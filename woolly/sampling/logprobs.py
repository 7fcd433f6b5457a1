"""Log-probabilities over the complete vocabulary, from the model's original logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import largest, log_sum_exp
from woolly.errors import ModelError

if TYPE_CHECKING:
    from woolly.sampling.top_logits import TopLogits


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of a token before any sampler, with the most likely tokens at its position."""

    token: int
    logprob: float  # natural logarithm
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), most likely first, ties by id
    text: str = field(default="", compare=False)  # text of the token; U+FFFD for a partial character

    def __repr__(self) -> str:
        top = f", top {len(self.top)}" if self.top else ""
        return f"TokenLogprob({self.text!r}, {self.logprob:.4g}, token {self.token}{top})"


def log_probabilities(logits: npt.NDArray[np.float32], token: int, n_top: int) -> TokenLogprob:
    """Return the log-softmax of a token and of the n_top most likely tokens, in float64."""
    n_top = min(n_top, len(logits))
    ids, values = np.empty(n_top, np.int32), np.empty(n_top, np.float32)
    total = log_sum_exp(logits)
    if not math.isfinite(total):
        raise ModelError("the model computed logits that are not finite; its file may be damaged")
    largest(logits, ids, values)
    top = zip(ids.tolist(), (values.astype(np.float64) - total).tolist(), strict=True)
    return TokenLogprob(token, float(logits[token]) - total, tuple(top))


def top_log_probabilities(head: TopLogits, token: int, n_top: int) -> TokenLogprob:
    """Return log-probabilities from top logits; read the complete row only if they do not suffice."""
    if math.isnan(head.total):
        return log_probabilities(head.whole(), token, n_top)
    total = float(head.logits[0]) + math.log(head.total)
    found = head.logits[head.ids == token]
    logit = float(found[0]) if len(found) else float(head.whole()[token])
    n_top = min(n_top, head.n_vocab)
    top = zip(head.ids[:n_top].tolist(), (head.logits[:n_top].astype(np.float64) - total).tolist(), strict=True)
    return TokenLogprob(token, logit - total, tuple(top))
