"""The Sampler: one row of logits -> one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly._native import mask
from woolly.errors import CallbackError, ModelError, RequestError
from woolly.sampling.bias import LogitBias
from woolly.sampling.callbacks import call_processor, call_sampler
from woolly.sampling.candidates import Candidates, NoCandidateError
from woolly.sampling.chain import Chain
from woolly.sampling.history import History
from woolly.sampling.left_over import left_over
from woolly.sampling.logprobs import TokenLogprob, log_probabilities
from woolly.sampling.params import SamplingParams
from woolly.sampling.registry import Context
from woolly.sampling.seeds import draw_seed
from woolly.tokens import Tokenizer

if TYPE_CHECKING:
    from woolly.grammar import Constraint

__all__ = ["Choice", "Sampler"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Choice:
    """A chosen token, and its log-probability if the request asks for it."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """Chooses the tokens of one sequence, one after the other.

    What it chooses depends on the parameters, the seed, the prompt and the rows so far alone.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer | None = None,
        prompt: Sequence[int] = (),
        constraint: Constraint | None = None,
        index: int = 0,
    ) -> None:
        """`index` says which of a request's `n` answers this is: each has a seed of its own."""
        first = draw_seed() if params.seed is None else params.seed
        self.seed = (first + index) % 2**32
        self._params = params
        self._history = History(prompt)
        self._n_prompt = len(prompt)
        self._bias = LogitBias(params, tokenizer)
        self.constraint = constraint
        self._chain = Chain(params, Context(self._history, tokenizer, self.seed))

    def next(self, logits: Float32) -> Choice:
        """Chooses a token after a row of logits, which is left as it is, and goes on from there."""
        params = self._params
        try:
            row, owned = self._edited(logits)
            candidates = Candidates(row, owned=owned)
            if params.custom_sampler is not None:
                candidates.peak()  # raises for a row of NaN or -inf before the caller's function sees it
                token = call_sampler(params.custom_sampler, self._history, candidates.editable())
            else:
                # Logits may be minus infinity, and biases as large as a float32 can be.
                with np.errstate(all="ignore"):
                    token = self._chain.choose(candidates)
        except NoCandidateError:
            raise self._diagnosed(logits, row) from None
        logprob = None
        if params.logprobs is not None:
            if params.post_sampling_probs:
                logprob = left_over(candidates, token, params.logprobs, is_greedy=self._chain.is_greedy)
            else:
                logprob = log_probabilities(logits, token, params.logprobs)
        self._history.append(token)
        if self.constraint is not None:
            self.constraint.accept(token)
        return Choice(token, logprob)

    def _edited(self, logits: Float32) -> tuple[Float32, bool]:
        """The row that the chain reads, and whether it is a copy of the model's row."""
        row, owned = logits, False
        if self._params.logits_processors:
            row, owned = logits.copy(), True
            for processor in self._params.logits_processors:
                row = call_processor(processor, self._history, row)
        if self._bias.acts(len(self._history) - self._n_prompt):
            row, owned = row if owned else row.copy(), True
            self._bias.apply(row, len(self._history) - self._n_prompt)
        if self.constraint is not None:
            allowed = np.empty_like(row)
            mask(row, self.constraint.words(), allowed)
            row, owned = allowed, True
        return row, owned

    def _diagnosed(self, logits: Float32, row: Float32) -> Exception:
        if not np.isfinite(logits.max()):
            return ModelError("the model computed logits that are not finite; its file may be damaged")
        if self._params.logits_processors and row.max() != -np.inf:
            return CallbackError("logits_processors left logits that are NaN or infinite; numbers were expected")
        return RequestError("every token is ruled out; logit_bias, logits_processors and the structure must leave one")
