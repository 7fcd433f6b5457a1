"""Chain: the enabled samplers in order, and the chooser of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from woolly.sampling.choosers import Draw, Greedy, Mirostat
from woolly.sampling.fast_chain import FastChain
from woolly.sampling.registry import SamplerContext, SamplerStep, find_sampler
from woolly.sampling.top_logits import MAX_TOP_LOGITS

if TYPE_CHECKING:
    from woolly.sampling.candidates import Candidates
    from woolly.sampling.params import SamplingParams


class _Chooser(Protocol):
    def choose(self, candidates: Candidates) -> int: ...


class Chain:
    """Sampler chain without disabled samplers and without samplers that cannot change a greedy choice."""

    def __init__(self, params: SamplingParams, context: SamplerContext) -> None:
        self.steps: list[SamplerStep] = []
        self.chooser: _Chooser = Greedy()
        self.usual: FastChain | None = None
        self.is_read = params.post_sampling_probs  # the candidates after the chain are needed
        for name in ("temperature",) if params.mirostat else params.samplers:
            if name == "temperature" and params.temperature <= 0.0 and params.dynatemp_range == 0.0:
                while self.steps and getattr(self.steps[-1], "keeps_likeliest", False):
                    self.steps.pop()
                return
            if (step := find_sampler(name).make(params, context)) is not None:
                self.steps.append(step)
        if params.mirostat:
            self.chooser = Mirostat(params.mirostat, params.mirostat_tau, params.mirostat_eta, context.seed)
        else:
            self.chooser = Draw(context.seed)
            self.usual = None if self.is_read else FastChain.of(self.steps, self.chooser)

    @property
    def is_greedy(self) -> bool:
        """True if the chain always chooses the most likely token."""
        return isinstance(self.chooser, Greedy)

    @property
    def alone(self) -> FastChain | Greedy | None:
        """Step that replaces the complete chain, or None if several are needed."""
        if isinstance(self.chooser, Greedy):
            return None if self.steps or self.is_read else self.chooser
        return self.usual

    @property
    def n_top_logits(self) -> int:
        """Number of top logits that usually suffice; 0 if the complete row is needed."""
        n_lowered = 0
        for step in self.steps:
            n: int = getattr(step, "n_top_logits", 0)
            if n:
                return min(n + n_lowered, MAX_TOP_LOGITS) if n <= MAX_TOP_LOGITS else 0
            if not getattr(step, "only_lowers", False):
                return 0
            n_lowered = MAX_TOP_LOGITS
        return min(1 + n_lowered, MAX_TOP_LOGITS) if self.is_greedy else 0

    def choose(self, candidates: Candidates) -> int:
        """Run the samplers and choose a token."""
        if self.usual is not None:
            return self.usual.choose(candidates)
        for step in self.steps:
            step.apply(candidates)
        return self.chooser.choose(candidates)
