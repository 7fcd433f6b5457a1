"""Top-k sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from woolly.sampling.registry import SamplerContext, sampler

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.params import SamplingParams


@sampler("top_k")
@dataclass(frozen=True)
class TopK:
    """Keeps the k most likely tokens."""

    keeps_likeliest: ClassVar[bool] = True

    k: int

    @property
    def n_top_logits(self) -> int:
        """Number of tokens that the sampler reads."""
        return self.k

    @classmethod
    def make(cls, params: SamplingParams, context: SamplerContext) -> TopK | None:
        """Return the sampler, or None if it is disabled."""
        return cls(params.top_k) if params.top_k > 0 else None

    def apply(self, candidates: Candidates) -> None:
        """Sort, and keep the first k."""
        candidates.keep_largest(self.k)
