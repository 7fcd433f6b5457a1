"""Sampler: chooses a token from a row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from woolly._native import mask
from woolly.errors import CallbackError, ModelError, RequestError
from woolly.sampling.bias import LogitBias
from woolly.sampling.callbacks import call_processor, call_sampler
from woolly.sampling.candidates import Candidates, NoCandidateError, TooFewLogitsError
from woolly.sampling.chain import Chain
from woolly.sampling.choosers import Greedy
from woolly.sampling.history import History
from woolly.sampling.logprobs import TokenLogprob, log_probabilities, top_log_probabilities
from woolly.sampling.post_sampling import post_sampling_logprob
from woolly.sampling.reasoning_budget import ReasoningBudget, ReasoningMarkers
from woolly.sampling.registry import SamplerContext
from woolly.sampling.seeds import draw_seed
from woolly.sampling.top_logits import MAX_TOP_LOGITS, Row, TopLogits

if TYPE_CHECKING:
    from woolly.grammar import Constraint
    from woolly.sampling.fast_chain import FastChain
    from woolly.sampling.params import SamplingParams
    from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]


class Choice(NamedTuple):
    """Chosen token, with its log-probability if requested."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """Chooses the tokens of a sequence one by one.

    The choice only depends on the parameters, the seed, the prompt and the rows so far.
    """

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer | None = None,
        prompt: Sequence[int] = (),
        constraint: Constraint | None = None,
        index: int = 0,
        reasoning_markers: ReasoningMarkers | None = None,
        reasoning_ends: Sequence[int] = (),
    ) -> None:
        """`index` is the number of the answer among the request's `n`, each of which has a different seed.

        `reasoning_markers` enclose the reasoning at the start of the answer. `reasoning_ends` are the token counts of
        earlier `end_reasoning` calls, which are repeated.
        """
        first = draw_seed() if params.seed is None else params.seed
        self.seed = (first + index) % 2**32
        self._params = params
        self._history = History(prompt)
        self._n_prompt = len(prompt)
        self._bias = LogitBias(params, tokenizer)
        self.constraint = constraint
        self._tokenizer = tokenizer
        self._marks = reasoning_markers
        self._reasoning = (
            None if params.reasoning_budget is None else self._new_reasoning_budget(params.reasoning_budget)
        )
        self.reasoning_ends = tuple(reasoning_ends)  # token counts at which a call ended the reasoning
        self._chain = Chain(params, SamplerContext(self._history, tokenizer, self.seed))
        self.n_top_logits = self._n_top_logits()  # sufficient number of top logits; 0: complete rows
        self._alone = self._chain.alone if self.n_top_logits and params.logprobs is None else None
        if 0 in self.reasoning_ends:
            self.end_reasoning()

    def next(self, row: Row) -> Choice:
        """Choose a token from a row of logits, which is not changed, and add it to the history.

        With top logits, the choice is the same as with the complete row, which is requested if needed.
        """
        if isinstance(row, int):
            self._go_on(row)
            return Choice(row)
        params = self._params
        if (forced := self._next_forced()) is not None:
            whole = None if params.logprobs is None else row.whole() if isinstance(row, TopLogits) else row
            self._go_on(forced)
            return Choice(forced, None if whole is None else self._forced_logprob(whole, forced))
        head = row if isinstance(row, TopLogits) and row.is_sound and self.n_top_logits else None
        chosen = None if head is None else self._from_head(head)
        token, candidates = chosen or self._from_row(row.whole() if isinstance(row, TopLogits) else row)
        logprob = None
        if params.logprobs is not None:
            if params.post_sampling_probs:
                logprob = post_sampling_logprob(candidates, token, params.logprobs, is_greedy=self._chain.is_greedy)
            elif head is not None:
                logprob = top_log_probabilities(head, token, params.logprobs)
            else:
                logprob = log_probabilities(row.whole() if isinstance(row, TopLogits) else row, token, params.logprobs)
        self._go_on(token)
        return Choice(token, logprob)

    @property
    def forced(self) -> Sequence[int]:
        """Forced next tokens: the end of reasoning at its budget."""
        return () if self._reasoning is None else self._reasoning.forced

    def end_reasoning(self) -> bool:
        """End the reasoning with the next token; return True if the answer is in its reasoning."""
        n_output = len(self._history) - self._n_prompt
        if self._reasoning is None and self._marks is not None:
            self._reasoning = self._new_reasoning_budget(2**63)
            for token in self._history.last(n_output).tolist() if n_output else ():
                if self._reasoning is not None:
                    self._reasoning.observe(token)
        if self._reasoning is None or not self._reasoning.end():
            return False
        if n_output not in self.reasoning_ends:  # with channels, more reasoning may follow
            self.reasoning_ends = (*self.reasoning_ends, n_output)
        return True

    @property
    def device_chain(self) -> FastChain | Greedy | None:
        """Chooser that the device can use for the next token, or None if other steps may be needed."""
        return None if self.constraint is not None or self.forced else self._alone

    @property
    def lowered(self) -> frozenset[int]:
        """Tokens that biases lower at the next choice. With top logits, no token becomes more likely."""
        return self._bias.lowered(len(self._history) - self._n_prompt)

    def chooses_alike(self, ids: npt.NDArray[np.int32], is_lowered: bool = True) -> FastChain | Greedy | None:
        """Return the chooser that can choose the next token from these top logits alone, or None.

        `is_lowered` is True if any of the top tokens may be in `lowered`.
        """
        chain = self._alone
        if chain is None or self.constraint is not None or self.forced:
            return None
        if is_lowered and (lowered := self.lowered):
            # Only the first n tokens affect the choice.
            n = 1 if isinstance(chain, Greedy) else chain.k
            return chain if lowered.isdisjoint(ids[:n].tolist()) else None
        return chain

    def _go_on(self, token: int) -> None:
        """Add a token to all trackers of the answer."""
        self._history.append(token)
        if self.constraint is not None:
            self.constraint.accept(token)
        if self._reasoning is not None:
            self._reasoning.observe(token)
            if self._reasoning.is_over and not self._reasoning.forced:
                self._reasoning = self._marks = None
        if self.reasoning_ends and len(self._history) - self._n_prompt in self.reasoning_ends:
            self.end_reasoning()

    def _new_reasoning_budget(self, budget: int) -> ReasoningBudget | None:
        params, tokenizer = self._params, self._tokenizer
        if self._marks is None or tokenizer is None:
            return None
        return ReasoningBudget(self._marks, tokenizer, budget, params.reasoning_budget_message or "")

    def _next_forced(self) -> int | None:
        """Return the forced next token, or None."""
        if not self.forced:
            return None
        assert self._reasoning is not None
        token = self._reasoning.forced[0]
        if self.constraint is not None and not self.constraint.words()[token >> 5] >> np.uint32(token & 31) & 1:
            self._reasoning.refuse()
            return None
        return token

    def _forced_logprob(self, logits: Float32, token: int) -> TokenLogprob:
        if self._params.post_sampling_probs:
            return TokenLogprob(token, 0.0, ((token, 0.0),) if self._params.logprobs else ())
        return log_probabilities(logits, token, self._params.logprobs or 0)

    def _n_top_logits(self) -> int:
        params, n = self._params, self._chain.n_top_logits
        n_lowered = self._bias.n_lowered
        if n == 0 or n_lowered is None or params.logits_processors or params.custom_sampler is not None:
            return 0
        if (params.logprobs or 0) > MAX_TOP_LOGITS:
            return 0
        n = MAX_TOP_LOGITS if self.constraint is not None else min(n + n_lowered, MAX_TOP_LOGITS)
        return max(n, params.logprobs or 0)

    def _from_head(self, head: TopLogits) -> tuple[int, Candidates] | None:
        """Return the token and the remaining candidates, or None if the top logits do not suffice."""
        candidates = Candidates.of_top_logits(head)
        n_output = len(self._history) - self._n_prompt
        try:
            candidates.is_sum_known = not (self._bias.acts(n_output) or math.isnan(head.total))
            if not self._bias.spares(head.ids, n_output):
                self._bias.apply_to(head.ids, candidates.editable(), n_output)
            if self.constraint is not None:
                words = self.constraint.words()
                is_allowed = words[head.ids >> 5] >> (head.ids & 31).astype(np.uint32) & np.uint32(1)
                candidates.editable()[is_allowed == 0] = -np.inf
            with np.errstate(all="ignore"):
                return self._chain.choose(candidates), candidates
        except (NoCandidateError, TooFewLogitsError):
            return None  # no random number has been drawn

    def _from_row(self, logits: Float32) -> tuple[int, Candidates]:
        """Return the token and the remaining candidates."""
        params = self._params
        try:
            row, owned = self._edited(logits)
            candidates = Candidates(row, owned=owned)
            if params.custom_sampler is not None:
                candidates.peak()  # raises for a row of NaN or -inf before the custom sampler is called
                return call_sampler(params.custom_sampler, self._history, candidates.editable()), candidates
            # Logits may be minus infinity, and biases as large as float32 allows.
            with np.errstate(all="ignore"):
                return self._chain.choose(candidates), candidates
        except NoCandidateError:
            raise self._diagnosed(logits, row) from None

    def _edited(self, logits: Float32) -> tuple[Float32, bool]:
        """Return the row for the chain, and True if it is a copy of the model's row."""
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
            return CallbackError("logits_processors returned NaN or infinite logits; expected finite numbers")
        return RequestError("no token is allowed; relax logit_bias, logits_processors or the structure of the answer")
