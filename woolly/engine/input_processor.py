"""InputProcessor: validates the arguments of a request and creates the Request."""

from __future__ import annotations

import math
import numbers
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from woolly.engine import multimodal
from woolly.engine.drafts.forced_tokens import check_replayable
from woolly.engine.loading.step_names import find_step, has_all_rows
from woolly.engine.request import Request
from woolly.errors import RequestError
from woolly.multimodal import Placeholder, Prompt
from woolly.sampling.option import options_of
from woolly.sampling.sampler import Sampler
from woolly.tokens import StreamDetokenizer, Tokenizer
from woolly.tokens.stop_strings import StopMatcher

if TYPE_CHECKING:
    from woolly.engine.loading.adapters import AdapterSet
    from woolly.engine.loading.hooks import Hook
    from woolly.engine.request_options import RequestOptions
    from woolly.grammar import Constraint, GrammarCompiler
    from woolly.plan import Plan
    from woolly.runtime import Program
    from woolly.sampling.params import SamplingParams


class InputProcessor:
    """Creates requests and rejects invalid ones before any computation."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        program: Program,
        ctx: int,
        ctx_limit: int,
        adapters: AdapterSet,
        salt: bytes = b"",
        tower: multimodal.Tower | None = None,
        max_rows: int = 0,
        source: multimodal.Source | None = None,
    ) -> None:
        """`max_rows` bounds the rows of an image with bidirectional attention in a step."""
        self._source = source
        self._tower = tower
        self._max_rows = max_rows
        self._salt = salt
        self._tokenizer = tokenizer
        self._running = program, adapters  # a tuple, so that other threads read a consistent pair
        self._plan = program.running_plan
        self._ctx = ctx
        self._ctx_limit = ctx_limit
        self._grammars: GrammarCompiler | None = None
        self._lock = threading.Lock()  # several threads create requests

    def swap(self, program: Program, adapters: AdapterSet) -> None:
        """Create later requests for a program with other adapters."""
        self._running = program, adapters
        self._plan = program.running_plan

    @property
    def adapters(self) -> AdapterSet:
        """Adapters available to requests."""
        return self._running[1]

    def new_request(self, prompt: Sequence[int] | Prompt, params: SamplingParams, options: RequestOptions) -> Request:
        """Return a request that is not queued yet."""
        self.check_generative()
        if self._running[0].plan.diffusion is None:
            _check_autoregressive(params)
        else:
            from woolly.engine import diffusion  # few models need it

            if options.score_only:
                check_next_token(self._running[0].plan)
            diffusion.check_diffusion_request(params, options)
        inputs: multimodal.MultimodalInput | None = None
        said: Sequence[int] | None = None  # prompt tokens for penalties, without rows of images
        if self._source is not None:
            self.check_tokens([part for part in prompt if not isinstance(part, Placeholder)])
            prompt, inputs = self._source.read(prompt, params)
            said = prompt[inputs.n_source :]
        elif multimodal.has_placeholders(prompt):
            said = [part for part in prompt if not isinstance(part, Placeholder)]
            prompt, inputs = multimodal.read_multimodal_prompt(prompt, params, self._tower, self._max_rows)
            self.check_tokens(said)
        self.check_tokens(prompt)
        max_tokens = 0 if options.score_only else self._max_tokens(len(prompt), params)
        if options.score_only and len(prompt) > self._ctx:
            raise context_exceeded(len(prompt), self._ctx)
        for token in params.stop_token_ids:
            self._check_token(token, "stop_token_ids")
        for token in options.replay_tokens:
            self._check_token(token, "replay_tokens")
        check_replayable(options.replay_tokens, params, max_tokens)
        priority, beside, group = options.priority, options.beside, options.group
        if isinstance(priority, bool) or not isinstance(priority, numbers.Integral):
            raise RequestError(f"priority is {priority!r}; expected an integer (higher runs first)", field="priority")
        ids = tuple(map(int, prompt))
        program, adapters = self._running
        scales = adapters.scales_of(params.adapters)
        salt = self._salt + options.salt + adapters.salt_of(scales)
        return Request(
            prompt=ids,
            params=params,
            multimodal=inputs,
            sampler=Sampler(
                params,
                self._tokenizer,
                ids if said is None else tuple(said),
                self._constraint(params, beside),
                options.index,
                options.reasoning_markers,
                options.reasoning_ends,
            ),
            detokenizer=StreamDetokenizer(
                self._tokenizer,
                strip_prefix=self._source is not None,  # otherwise the answer continues the prompt
                shown=options.shown,
            ),
            stop=StopMatcher(params.stop),
            stop_ids=frozenset(params.stop_token_ids)
            | (frozenset() if params.ignore_eos else self._tokenizer.stop_ids),
            max_tokens=max_tokens,
            index=options.index,
            priority=int(priority),
            deadline=_deadline(options.timeout),
            salt=salt,
            adapters=scales,
            adapter_digests=adapters.digests,
            replay_tokens=tuple(map(int, options.replay_tokens)),
            n_shared=max(0, min(int(options.n_shared), len(ids))),
            turn_of=beside.group if group is None and beside is not None else group,
            hooks=self._find_hooks(program, options.hooks or {}, params),
            hooked=program.running_plan if options.hooks else None,
        )

    def check_generative(self) -> None:
        """Raise RequestError for an embedding or scoring model."""
        result = self._plan.result
        if result != "logits":
            verbs = "embed" if result == "embeddings" else "rerank or classify"
            raise RequestError(
                f"this model computes {result} and generates no text; use it to {verbs}, or open a generative model",
                field="model",
                code="wrong_model",
                names=(),
            )

    def check_tokens(self, ids: Sequence[int] | Prompt) -> None:
        """Raise RequestError for an empty prompt or token ids outside the vocabulary."""
        if len(ids) == 0:
            raise RequestError("the prompt is empty; expected at least one token", field="prompt", names=())
        n_vocab = self._plan.n_tokens
        for token in ids:
            # Most tokens are plain ints; only other types need the slow check.
            if type(token) is not int or not 0 <= token < n_vocab:
                self._check_token(token, "prompt")

    def _check_token(self, token: object, field: str) -> None:
        n_vocab = self._plan.n_tokens
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)) or not 0 <= token < n_vocab:
            raise RequestError(
                f"token {token!r} is not in the vocabulary; expected an id from 0 to {n_vocab - 1}",
                field=field,
                names=(),
            )

    def _max_tokens(self, n_prompt: int, params: SamplingParams) -> int | None:
        program, ctx = self._running[0], self._ctx
        if (model := program.plan.diffusion) is not None:
            ctx = min(ctx, program.max_rows)  # every step computes all tokens of a request in one batch
        room = ctx - n_prompt
        if room < 1:
            can_grow = ctx == self._ctx < self._ctx_limit
            raise RequestError(
                f"the prompt has {n_prompt} tokens (a chat template's included), but the context holds {ctx}"
                " and at least one must be left for the answer; shorten it"
                + (f", or raise ctx, at most to {self._ctx_limit}" if can_grow else ""),
                code="context_length",
                limit=ctx,
                given=n_prompt,
                names=("ctx",),
            )
        if params.context_shift:
            n_keep = n_prompt if params.n_keep < 0 else params.n_keep
            if n_keep > self._ctx - 2:
                raise RequestError(
                    f"n_keep is {n_keep}; expected at most {self._ctx - 2} for context_shift with ctx {self._ctx}",
                    field="n_keep",
                    code="context_length",
                    limit=self._ctx - 2,
                )
            return params.max_tokens
        if model is not None:
            from woolly.engine import diffusion

            return diffusion.answer_length(params, room, model, self._plan.width)
        # Clients send a fixed limit regardless of the free context, so it is an upper bound.
        return room if params.max_tokens is None else min(room, params.max_tokens)

    def _constraint(self, params: SamplingParams, beside: Request | None) -> Constraint | None:
        if params.structure is None:
            return None
        # Imported late: most requests have no grammar.
        from woolly.grammar import GrammarCompiler

        with self._lock:
            grammars = self._grammars = self._grammars or GrammarCompiler(self._tokenizer)
        return grammars.compile(*params.structure).start(None if beside is None else beside.sampler.constraint)

    def _find_hooks(
        self, program: Program, hooks: Mapping[str | int, Hook], params: SamplingParams
    ) -> dict[int, tuple[Hook, ...]]:
        if hooks and params.context_shift:
            raise RequestError(
                "hooks cannot be combined with context_shift, which changes positions; remove one of them",
                field="hooks",
            )
        found: dict[int, tuple[Hook, ...]] = {}
        for name, hook in hooks.items():
            if not callable(hook):
                raise RequestError(f"the hook at {name!r} is {hook!r}; expected a callable", field="hooks", names=())
            step = find_step(program, name)
            if not has_all_rows(program, step):
                raise RequestError(
                    f"the hook at {name!r} is after the last layer, where most tokens have no value;"
                    " use an earlier step",
                    field="hooks",
                    names=(),
                )
            found[step] = (*found.get(step, ()), hook)  # two names may refer to one fused step
        return found


def _check_autoregressive(params: SamplingParams) -> None:
    """Raise RequestError for options of diffusion decoding."""
    for name, option in options_of(type(params)).items():
        if name.startswith("diffusion_") and getattr(params, name) != option.default:
            raise RequestError(
                f"{name} is set, but this model is not a diffusion language model; leave it out", field=name
            )


def check_decoder_only(plan: Plan) -> None:
    """Raise RequestError for an encoder-decoder model, which cannot continue a prompt."""
    if plan.has_source:
        raise RequestError(
            "this is an encoder-decoder model, which computes no logits, scores or hidden states of a text; open a"
            " decoder-only model",
            field="model",
            code="wrong_model",
            names=(),
        )


def check_next_token(plan: Plan) -> None:
    """Raise RequestError for a model that computes no probabilities of the next token."""
    check_decoder_only(plan)
    if plan.diffusion is not None:
        raise RequestError(
            "this is a diffusion language model, which fills in masked tokens and has no probabilities of the next"
            " token; open an autoregressive model",
            field="model",
            code="wrong_model",
            names=(),
        )


def context_exceeded(n_tokens: int, ctx: int) -> RequestError:
    """Return the error for a text that exceeds the context in embedding or scoring."""
    return RequestError(
        f"the text has {n_tokens} tokens, but the context is {ctx}; raise ctx or shorten the text",
        code="context_length",
        limit=ctx,
        names=("ctx",),
    )


def _deadline(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    sound = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not sound or not math.isfinite(timeout) or timeout <= 0:
        raise RequestError(f"timeout is {timeout!r}; expected a number of seconds above 0", field="timeout")
    return time.monotonic() + float(timeout)
