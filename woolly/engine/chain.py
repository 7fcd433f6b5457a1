"""The Chain: the samplers that the parameters ask for, in their order, and what takes a token in the end."""

from __future__ import annotations

from typing import Protocol

from woolly.engine.breakers import sequence_breakers
from woolly.engine.candidates import Candidates
from woolly.engine.choosers import Draw, Greedy, Mirostat
from woolly.engine.filters import MinP, Temperature, TopK, TopNSigma, TopP, Typical, Xtc
from woolly.engine.params import SamplingParams
from woolly.engine.penalties import Dry, History, RepetitionPenalty
from woolly.text import Tokenizer

__all__ = ["Chain"]

_KEEP_THE_LIKELIEST = (TopK, TopP, MinP, TopNSigma)


class _Step(Protocol):
    def apply(self, candidates: Candidates) -> None: ...


class _Chooser(Protocol):
    def choose(self, candidates: Candidates) -> int: ...


class Chain:
    """Samplers that ask for nothing are left out, and so is what a greedy choice makes pointless."""

    def __init__(self, params: SamplingParams, history: History, tokenizer: Tokenizer | None, seed: int) -> None:
        self.steps: list[_Step] = []
        self.chooser: _Chooser = Greedy()
        for name in ("temperature",) if params.mirostat else params.samplers:
            if name == "temperature" and params.temperature <= 0.0 and params.dynatemp_range == 0.0:
                while self.steps and isinstance(self.steps[-1], _KEEP_THE_LIKELIEST):
                    self.steps.pop()
                return
            if (step := _make(name, params, history, tokenizer, seed)) is not None:
                self.steps.append(step)
        if params.mirostat:
            self.chooser = Mirostat(params.mirostat, params.mirostat_tau, params.mirostat_eta, seed)
        else:
            self.chooser = Draw(seed)

    def choose(self, candidates: Candidates) -> int:
        """Runs the samplers, and takes a token."""
        for step in self.steps:
            step.apply(candidates)
        return self.chooser.choose(candidates)


def _make(name: str, params: SamplingParams, history: History, tokenizer: Tokenizer | None, seed: int) -> _Step | None:
    """One sampler; None where its fields ask for nothing."""
    keep = params.min_keep
    match name:
        case "penalties" if params.repeat_last_n != 0:
            amounts = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
            return None if amounts == (1.0, 0.0, 0.0) else RepetitionPenalty(history, params.repeat_last_n, *amounts)
        case "dry" if params.dry_multiplier > 0.0 and params.dry_penalty_last_n != 0:
            breakers = {} if tokenizer is None else sequence_breakers(tokenizer, params.dry_sequence_breakers)
            growth = params.dry_multiplier, params.dry_base, params.dry_allowed_length
            return Dry(history, params.dry_penalty_last_n, *growth, breakers)
        case "top_n_sigma" if params.top_n_sigma > 0.0:
            return TopNSigma(params.top_n_sigma)
        case "top_k" if params.top_k > 0:
            return TopK(params.top_k)
        case "typ_p" if params.typical_p < 1.0:
            return Typical(params.typical_p, keep)
        case "top_p" if params.top_p < 1.0:
            return TopP(params.top_p, keep)
        case "min_p" if params.min_p > 0.0:
            return MinP(params.min_p, keep)
        case "xtc" if params.xtc_probability > 0.0 and params.xtc_threshold <= 0.5:
            return Xtc(params.xtc_probability, params.xtc_threshold, keep, seed)
        case "temperature":
            spread = 0.0 if params.mirostat else params.dynatemp_range
            return Temperature(params.temperature, spread, params.dynatemp_exponent)
    return None
