"""KL divergence per token between two models with the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from woolly.errors import RequestError
from woolly.measure.perplexity import Float32, Float64, MeanEstimate, Scorer, log_total, mean_and_error


@dataclass(frozen=True)
class Divergence:
    """Values per scored token of one window or of all windows."""

    surprise: Float64  # negative log-likelihood of the model, in nats
    base_surprise: Float64
    kl: Float64  # KL divergence of the model from the base, in nats
    same_top: Float64  # 1 if both models have the same top token
    probability_change: Float64  # probability of the actual token, model minus base

    @classmethod
    def of_window(cls, model: Scorer, base: Scorer, window: Sequence[int]) -> Divergence:
        """Compute a window with both models and compare the logits row by row."""
        kept = [(first, rows.copy()) for first, rows in base.logits(window)]
        parts: list[Divergence] = []
        for (first, base_rows), (_, rows) in zip(kept, model.logits(window), strict=True):
            following = np.asarray(window[first + 1 : first + 1 + len(rows)])
            parts += model.spread(len(rows), lambda part: _compare(rows[part], base_rows[part], following[part]))  # noqa: B023
        return cls.join(parts)

    @classmethod
    def join(cls, parts: Sequence[Divergence]) -> Divergence:
        """Concatenate the values of all windows."""
        return cls(*(np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass(frozen=True)
class Totals:
    """Summary statistics."""

    perplexity: MeanEstimate
    base_perplexity: MeanEstimate
    ratio: MeanEstimate  # ratio of the perplexities
    kl: MeanEstimate
    kl_median: float
    kl_99: float  # 99th percentile
    kl_max: float
    same_top: MeanEstimate
    probability_rms: float

    @classmethod
    def of(cls, d: Divergence) -> Totals:
        """Summarize all tokens."""
        return cls(
            perplexity=exponential(mean_and_error(d.surprise)),
            base_perplexity=exponential(mean_and_error(d.base_surprise)),
            ratio=exponential(mean_and_error(d.surprise - d.base_surprise)),
            kl=mean_and_error(d.kl),
            kl_median=float(np.median(d.kl)),
            kl_99=float(np.quantile(d.kl, 0.99)),
            kl_max=float(d.kl.max()),
            same_top=mean_and_error(d.same_top),
            probability_rms=float(np.sqrt(np.mean(d.probability_change**2))),
        )


def exponential(estimate: MeanEstimate) -> MeanEstimate:
    """Return exp of an estimate in nats, with propagated error."""
    value = float(np.exp(estimate.mean))
    return MeanEstimate(value, value * estimate.error)


def check_same_vocabulary(model: Scorer, base: Scorer) -> None:
    """Raise RequestError unless both vocabularies are equal, including padding rows at the end."""
    ours, theirs = model.tokenizer, base.tokenizer
    if ours.n_vocab != theirs.n_vocab:
        raise RequestError(
            f"{base.loaded.path} has a vocabulary of {theirs.n_vocab} tokens, but {model.loaded.path} has"
            f" {ours.n_vocab}; only models with the same vocabulary can be compared"
        )
    for token in (0, ours.n_vocab // 3, 2 * ours.n_vocab // 3, ours.n_vocab - 1):
        if ours.token_text(token) != theirs.token_text(token):
            raise RequestError(
                f"token {token} is {theirs.token_text(token)!r} in {base.loaded.path}, but {ours.token_text(token)!r} "
                f"in {model.loaded.path}; only models with the same vocabulary can be compared"
            )


def _compare(rows: Float32, base: Float32, following: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Divergence:
    total, base_total = log_total(rows), log_total(base)
    here = np.arange(len(rows))
    chosen = rows[here, following].astype(np.float64) - total
    base_chosen = base[here, following].astype(np.float64) - base_total
    shares = np.exp(base - base_total.astype(np.float32)[:, None])
    # KL is the mean of log p - log q under p. The normalizers are added outside of the sum.
    kl = np.einsum("ij,ij->i", shares, base - rows, dtype=np.float64) - base_total + total
    return Divergence(
        surprise=-chosen,
        base_surprise=-base_chosen,
        kl=np.maximum(kl, 0),
        same_top=(rows.argmax(axis=1) == base.argmax(axis=1)).astype(np.float64),
        probability_change=np.exp(chosen) - np.exp(base_chosen),
    )
