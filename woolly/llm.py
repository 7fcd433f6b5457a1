"""LLM: load, generate, chat, score, logits, tokenize. The library's face."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from woolly.engine import (
    Chunk,
    Completion,
    Draft,
    DraftModel,
    Driver,
    Engine,
    Hook,
    LoadedModel,
    PrefixStats,
    PromptLookup,
    SamplingParams,
    Score,
    Stream,
    check_vocabulary,
    context_limit,
    default_ctx,
    default_kv_tokens,
    is_list_of_prompts,
    load_model,
    params_of_each,
    progress_bar,
)
from woolly.engine import Sequence as Request
from woolly.errors import RequestError
from woolly.plan import Plan
from woolly.runtime import Options, parse_size
from woolly.text import ChatTemplate

__all__ = ["LLM", "Chunk", "Completion", "Stream", "default_ctx"]

Prompt = str | Sequence[int]
Prompts = list[str] | list[list[int]] | tuple[str, ...] | tuple[list[int], ...]
Params = SamplingParams | Sequence[SamplingParams]
Message = Mapping[str, Any]
Hooks = Mapping[str | int, Hook]

_CHATML_END = "<|im_end|>"
_NOT_VARIABLES = {"messages", "tools", "documents"}  # have arguments of their own


class LLM:
    """A model that is ready to answer. Several threads may use it at once; their requests share its steps.

    `path`, `tokenizer`, `template` and `ctx` tell what was opened.

    >>> with LLM("smollm2") as llm:
    ...     print(llm.chat([{"role": "user", "content": "Why is the sky blue?"}], SamplingParams(max_tokens=50)))
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        backend: str = "auto",
        threads: int | None = None,
        ctx: int | None = None,
        kv_tokens: int | None = None,
        weight_memory: int | str | None = None,
        kv_type: str | None = None,
        max_running: int = 16,
        chunk: int | None = None,
        speculation: str | os.PathLike[str] | LLM | None = None,
        draft_tokens: int = 8,
        chat_template: str | None = None,
    ) -> None:
        """Opens a GGUF file, by path or by the name under which it was pulled.

        `ctx` bounds prompt and answer of one request together, in tokens; the model's own limit is the most it can be.
        `kv_tokens` is how many tokens the cache keeps for all requests, running and past: by default four contexts
        where they take at most a tenth of the memory that is available, else less, but at least one. `max_running`
        requests run at once, others wait; a step computes at most `chunk` tokens for all of them. `threads` None takes
        all cores. `weight_memory` bounds what is kept of prepared weights, in bytes or as text such as "600MB".
        `kv_type` is f16, f32 or q8_0: how the cache keeps keys and values. `speculation` guesses up to `draft_tokens`
        tokens ahead, which changes no text: by "prompt_lookup" in the text so far, or with a smaller model of the same
        vocabulary, given as a file, a name or an open LLM, whose file is then opened once more.
        `chat_template` lays out conversations in place of the file's own.
        """
        for name, value in (("max_running", max_running), ("draft_tokens", draft_tokens), ("chunk", chunk)):
            if name == "chunk" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RequestError(f"{name} is {value!r}; a whole number of at least 1 was expected")
        if chat_template is not None and not (isinstance(chat_template, str) and chat_template.strip()):
            raise RequestError("chat_template is empty; a Jinja template was expected")
        options = Options(threads, parse_size("weight_memory", weight_memory), kv_type)
        loaded = load_model(model, backend, options)
        self.path = loaded.path
        self.tokenizer = loaded.tokenizer
        self._loaded: list[LoadedModel] = [loaded]
        try:
            ends = (self.tokenizer.bos_id, self.tokenizer.eos_id)
            bos, eos = ("" if token is None else self.tokenizer.token_text(token) for token in ends)
            metadata = loaded.file.metadata if chat_template is None else {"tokenizer.chat_template": chat_template}
            self.template = ChatTemplate.from_metadata(metadata, bos_token=bos, eos_token=eos)
            # Where ChatML stands in for a missing template, its end mark may be plain text to this vocabulary.
            unknown_mark = self.template.is_fallback and len(self.tokenize(_CHATML_END, add_special=False)) != 1
            self._chat_stop = _CHATML_END if unknown_mark else None
            self.ctx = default_ctx(loaded.file, loaded.program.plan, ctx)
            kv_tokens = default_kv_tokens(loaded.program, self.ctx, kv_tokens)
            engine = Engine(
                loaded.program,
                self.tokenizer,
                ctx=self.ctx,
                kv_tokens=kv_tokens,
                chunk=chunk,
                max_running=max_running,
                draft=self._draft(speculation, kv_tokens, backend, options),
                draft_tokens=draft_tokens,
            )
            self.driver = Driver(engine)
        except BaseException:
            self._unload()
            raise

    @property
    def plan(self) -> Plan:
        """The steps that make up the model."""
        return self.engine.program.plan

    @property
    def engine(self) -> Engine:
        """What runs the requests."""
        return self.driver.engine

    @property
    def n_vocab(self) -> int:
        """Width of a row of logits."""
        return self.plan.n_vocab

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Text -> ids; `add_special` adds BOS and EOS as the file says, `parse_special` knows control tokens."""
        return self.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Ids -> text."""
        return self.tokenizer.decode(ids)

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each of the ids, float32 [len(ids), n_vocab]."""
        return self.driver.call(lambda engine: engine.logits(ids))

    def hidden(self, ids: Sequence[int], step: str | int) -> npt.NDArray[np.float32]:
        """What a step makes of each of the ids, float32 [len(ids), width].

        "blk.3" is what layer 3 leaves, "blk.3.ffn_norm" the step with that weight, a number the step that
        `woolly plan --fused` prints with it (of the reference backend: `woolly plan`).
        """
        return self.driver.call(lambda engine: engine.hidden(ids, step))

    def score(self, prompt: Prompt) -> Score:
        """Log-probability of each token of a text, given those before it."""
        request = self.prepare_score(prompt)
        self.driver.complete([[request]])
        return Score.of(request)

    def prefix_stats(self) -> PrefixStats:
        """How much of the prompts so far was found in the cache, and why the rest was not."""
        return self.driver.call(Engine.prefix_stats)

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: Params | None = None,
        *,
        stream: Literal[False] = False,
        progress: bool = False,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> Stream: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: Params | None = None,
        *,
        stream: bool = False,
        progress: bool = False,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> Completion | list[Completion] | Stream:
        """Continues a prompt (text, or token ids taken as they are), or each of a list of prompts, all at once.

        A list takes one `params` for all or a list of them, and gives a list in the same order; `progress` shows a
        bar on standard error meanwhile. With `stream`, one prompt is continued chunk by chunk. After `timeout`
        seconds a request ends with what it has, as cancelled. A higher `priority` goes first. `hooks` are called with
        (positions, values) of the named steps (see `hidden`) for each token that is computed.

        A request that fails, as by a callback of its own, raises; in a list its Completion carries the error.
        """
        many = is_list_of_prompts(prompt)
        if stream and progress:
            raise RequestError("progress is asked for, but a stream shows its own; leave one of them out")
        groups = self.prepare(prompt, params, timeout=timeout, priority=priority, hooks=hooks)
        if stream:
            if many:
                raise RequestError("the prompt is a list, but one prompt at a time can be streamed")
            return Stream(self.driver, groups[0])
        if progress:
            with progress_bar(sum(map(len, groups))) as ended:
                completions = self.driver.complete(groups, ended)
        else:
            completions = self.driver.complete(groups)
        return completions if many else completions[0].checked()

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        stream: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        stream: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Stream: ...

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        stream: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Completion | Stream:
        """Answers a conversation, laid out by the file's own chat template. `timeout` and `priority` as in `generate`.

        `variables` are the template's own switches, such as enable_thinking. Control tokens that are written out in
        a message's content are control tokens, as in other engines: check content that you do not trust.
        """
        requests = self.prepare_chat(
            messages, params, tools=tools, documents=documents, variables=variables, timeout=timeout, priority=priority
        )
        return Stream(self.driver, requests) if stream else self.driver.complete([requests])[0].checked()

    def prepare(
        self, prompt: Prompt | Prompts, params: Params | None = None, *, hooks: Hooks | None = None, **options: Any
    ) -> list[list[Request]]:
        """Requests that are not queued yet: for each prompt, one for each of its n answers.

        `options` are those of `Engine.prepare`.
        """
        if not is_list_of_prompts(prompt):
            (its,) = params_of_each(params, 1)
            return [self._requests(self._ids(prompt), its, hooks=hooks, **options)]
        given = params_of_each(params, len(prompt))
        groups = []
        for i, (one, its) in enumerate(zip(prompt, given, strict=True)):
            try:
                groups.append(self._requests(self._ids(one), its, hooks=hooks, **options))
            except RequestError as error:
                raise RequestError(f"prompt {i}: {error}") from error
        return groups

    def prepare_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> list[Request]:
        """As `prepare`, for one conversation."""
        for name in _NOT_VARIABLES & set(variables or {}):
            raise RequestError(f"variables holds {name!r}, which is no switch of the template; give it as {name}=...")
        text = self.template.render(messages, tools=tools, documents=documents, **(variables or {}))
        (params,) = params_of_each(params, 1)
        if self._chat_stop is not None and self._chat_stop not in params.stop:
            params = replace(params, stop=(*params.stop, self._chat_stop))
        return self._requests(self._tokenize_chat(text), params, **options)

    def prepare_score(self, prompt: Prompt) -> Request:
        """As `prepare`, for `Score.of`."""
        return self.engine.prepare(self._ids(prompt), SamplingParams(prompt_logprobs=0), score_only=True)

    def close(self) -> None:
        """Frees weights, cache, threads and file; open requests end cancelled, further calls are refused."""
        self.driver.close()
        self._unload()

    def __enter__(self) -> LLM:
        _ = self.engine  # says so where this was closed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({str(self.path)!r}, ctx={self.ctx})"

    def _requests(self, ids: Sequence[int], params: SamplingParams, **options: Any) -> list[Request]:
        engine = self.engine
        if params.n > 1 and params.seed is None:
            # The answers' seeds follow each other, as with a seed that is given.
            params = replace(params, seed=int.from_bytes(os.urandom(4), "little"))
        return [engine.prepare(ids, params, index=index, **options) for index in range(params.n)]

    def _ids(self, prompt: Any) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            raise RequestError(
                f"the prompt is of type {type(prompt).__name__}; text or a list of token ids was expected"
            )
        return prompt

    def _tokenize_chat(self, text: str) -> list[int]:
        """Templates mostly write BOS themselves: it is added only where they did not. EOS never is."""
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids

    def _draft(
        self, speculation: str | os.PathLike[str] | LLM | None, kv_tokens: int, backend: str, options: Options
    ) -> Draft | None:
        if speculation is None:
            return None
        if speculation == "prompt_lookup":
            return PromptLookup()
        if isinstance(speculation, LLM):
            _ = speculation.engine  # says so where it was closed
            # Not its program: the logits of a run are a view that a run for the other engine would overwrite.
            speculation = speculation.path
        loaded = load_model(speculation, backend, options)
        self._loaded.append(loaded)
        check_vocabulary(loaded.tokenizer, self.tokenizer)
        return DraftModel(loaded.program, kv_tokens, min(self.ctx, context_limit(loaded.file, loaded.program.plan)))

    def _unload(self) -> None:
        while self._loaded:
            self._loaded.pop().close()
