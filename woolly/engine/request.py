"""The RequestMaker: checks what is asked for and makes a Sequence of it."""

from __future__ import annotations

import math
import numbers
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np

from woolly.engine.params import SamplingParams
from woolly.engine.sampler import Sampler
from woolly.engine.sequence import Hook, Sequence
from woolly.engine.steps import find_step, running_plan
from woolly.engine.stop import StopMatcher
from woolly.errors import RequestError
from woolly.runtime import Program
from woolly.text import StreamDetokenizer, Tokenizer

if TYPE_CHECKING:
    from woolly.engine.constraint import Constraint, GrammarCompiler

__all__ = ["RequestMaker"]


class RequestMaker:
    """Refuses what cannot be served before anything is computed."""

    def __init__(self, tokenizer: Tokenizer, program: Program, ctx: int) -> None:
        self._tokenizer = tokenizer
        self._plan = running_plan(program)
        self._ctx = ctx
        self._grammars: GrammarCompiler | None = None
        self._lock = threading.Lock()  # requests are made by many threads

    def make(
        self,
        prompt: Seq[int],
        params: SamplingParams,
        *,
        index: int,
        priority: int,
        timeout: float | None,
        hooks: Mapping[str | int, Hook] | None,
        score_only: bool,
    ) -> Sequence:
        """A sequence that is not queued yet."""
        self.check_tokens(prompt)
        max_tokens = 0 if score_only else self._max_tokens(len(prompt), params)
        if score_only and len(prompt) > self._ctx:
            raise RequestError(f"{len(prompt)} tokens exceed the context of {self._ctx}; raise ctx")
        for token in params.stop_token_ids:
            self._check_token(token)
        if isinstance(priority, bool) or not isinstance(priority, numbers.Integral):
            raise RequestError(f"priority is {priority!r}; a whole number was expected, the higher the sooner")
        ids = tuple(map(int, prompt))
        return Sequence(
            prompt=ids,
            params=params,
            sampler=Sampler(params, self._tokenizer, ids, self._constraint(params), index),
            detokenizer=StreamDetokenizer(self._tokenizer, strip_prefix=False),
            stop=StopMatcher(params.stop),
            stop_ids=frozenset(params.stop_token_ids)
            | (frozenset() if params.ignore_eos else self._tokenizer.stop_ids),
            max_tokens=max_tokens,
            index=index,
            priority=int(priority),
            deadline=_deadline(timeout),
            hooks=self._find_hooks(hooks or {}, params),
        )

    def check_tokens(self, ids: Seq[int]) -> None:
        """Refuses an empty prompt and ids outside the vocabulary."""
        if len(ids) == 0:
            raise RequestError("the prompt is empty; at least one token is needed")
        n_vocab = self._plan.n_vocab
        for token in ids:
            # Most are plain ints: the slow look is for the others.
            if type(token) is not int or not 0 <= token < n_vocab:
                self._check_token(token)

    def _check_token(self, token: object) -> None:
        n_vocab = self._plan.n_vocab
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < n_vocab:
            raise RequestError(f"token {token!r} is not an id of this vocabulary (0 to {n_vocab - 1})")

    def _max_tokens(self, n_prompt: int, params: SamplingParams) -> int | None:
        room = self._ctx - n_prompt
        if room < 1:
            raise RequestError(
                f"the prompt has {n_prompt} tokens (a chat template's included), but the context holds {self._ctx}"
                " and at least one must be left for the answer; shorten it, or raise ctx where the model allows"
            )
        if params.context_shift:
            n_keep = n_prompt if params.n_keep < 0 else params.n_keep
            if n_keep > self._ctx - 2:
                raise RequestError(
                    f"n_keep keeps {n_keep} tokens, but of a context of {self._ctx} a shift needs 2 others"
                )
            return params.max_tokens
        if params.max_tokens is not None and params.max_tokens > room:
            raise RequestError(
                f"the prompt's {n_prompt} tokens and max_tokens={params.max_tokens} exceed the context of {self._ctx}"
            )
        return room if params.max_tokens is None else params.max_tokens

    def _constraint(self, params: SamplingParams) -> Constraint | None:
        if params.structure is None:
            return None
        # Imported late: most requests have no grammar.
        from woolly.engine.constraint import GrammarCompiler

        with self._lock:
            grammars = self._grammars = self._grammars or GrammarCompiler(self._tokenizer)
        return grammars.compile(*params.structure).start()

    def _find_hooks(self, hooks: Mapping[str | int, Hook], params: SamplingParams) -> dict[int, tuple[Hook, ...]]:
        if hooks and params.context_shift:
            raise RequestError("hooks cannot follow a context that is shifted, because its positions change")
        found: dict[int, tuple[Hook, ...]] = {}
        for name, hook in hooks.items():
            if not callable(hook):
                raise RequestError(f"the hook at {name!r} is {hook!r}; a callable was expected")
            step = find_step(self._plan, name)
            if self._plan.values[self._plan.steps[step].outputs[-1]].rows != "batch":
                raise RequestError(f"the hook at {name!r} is behind the last layer, where most tokens have no value")
            found[step] = (*found.get(step, ()), hook)  # two names may mean one fused step
        return found


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    sound = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not sound or not math.isfinite(timeout) or timeout <= 0:
        raise RequestError(f"timeout is {timeout!r}; seconds above 0 were expected")
    return time.monotonic() + float(timeout)
