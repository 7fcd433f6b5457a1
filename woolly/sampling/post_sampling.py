"""Post-sampling probabilities: log-probabilities after all samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.sampling.logprobs import TokenLogprob

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates


def post_sampling_logprob(candidates: Candidates, token: int, n_top: int, *, is_greedy: bool) -> TokenLogprob:
    """Return the log-probability of a token among the candidates, and of the n_top most likely candidates."""
    if is_greedy:
        return TokenLogprob(token, 0.0, ((token, 0.0),)[:n_top])
    logits = candidates.logits.astype(np.float64)
    ids = np.arange(len(logits)) if candidates.ids is None else candidates.ids
    with np.errstate(divide="ignore"):
        logprobs = logits - logits.max()
        logprobs -= np.log(np.exp(logprobs).sum())
    order = np.argsort(-logprobs, kind="stable")[:n_top]
    top = tuple((int(ids[i]), float(logprobs[i])) for i in order if np.exp(logprobs[i]) > 0.0)
    own = logprobs[ids == token]
    # A custom sampler may return a token that the chain excluded.
    return TokenLogprob(token, float(own[0]) if len(own) else -np.inf, top)
