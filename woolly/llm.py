"""LLM: load, generate, chat, logits, tokenize. The library's face."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from woolly.engine import Engine, FinishReason, SamplingParams
from woolly.engine import Sequence as Request
from woolly.errors import ModelError, RequestError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import Keys, trace
from woolly.plan import Plan
from woolly.runtime import Options, choose, parse_size
from woolly.store import resolve
from woolly.text import ChatTemplate, Tokenizer

__all__ = ["LLM", "Chunk", "Completion", "Stream", "default_ctx"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

# Where the file allows more, a context is taken that fits small machines; `ctx=` asks for another.
DEFAULT_CTX = 8192

_CHATML_END = "<|im_end|>"


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer; the last one carries the finish reason."""

    text: str
    finish_reason: FinishReason | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Completion:
    """A whole answer. `str(completion)` is its text."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    n_prompt_tokens: int
    seed: int  # asking again with it gives the same answer

    def __str__(self) -> str:
        return self.text


class Stream(Iterator[Chunk]):
    """Chunks of an answer as they are made. The request starts at the first one, and ends when this is closed."""

    def __init__(self, llm: LLM, request: Request) -> None:
        self._llm = llm
        self._request = request
        self._started = self._ended = False

    def __next__(self) -> Chunk:
        if self._ended:
            raise StopIteration
        if not self._started:
            self._started = True
            self._llm._add(self._request)
        while not (text := self._llm._advance(self._request)):
            if self._request.finish_reason is not None:
                self._ended = True
                return Chunk("", self._request.finish_reason)
        return Chunk(text)

    def close(self) -> None:
        """Cancels the request where it has not finished; its place in the cache is free again."""
        self._ended = True
        if self._started:
            self._llm._cancel(self._request)

    def __del__(self) -> None:
        self.close()


class LLM:
    """A model that is ready to answer. Several threads may use it at once; their requests share its steps.

    >>> with LLM("smollm2") as llm:
    ...     print(llm.chat([{"role": "user", "content": "Why is the sky blue?"}]))
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        backend: str = "auto",
        threads: int | None = None,
        ctx: int | None = None,
        weight_memory: int | str | None = None,
        kv_type: str | None = None,
    ) -> None:
        """Opens a GGUF file, by path or by the name under which it was pulled.

        `ctx` bounds prompt and answer together, in tokens; the model's own limit is the most it can be.
        `threads` None takes all cores. `weight_memory` bounds what is kept of prepared weights, in bytes or as
        text such as "600MB". `kv_type` is f16, f32 or q8_0: how the cache keeps keys and values.
        """
        self.path = resolve(model)
        self._file = open_gguf(self.path)
        try:
            plan = trace(self._file)
            self.tokenizer = Tokenizer.from_metadata(self._file.metadata)
            self.template = ChatTemplate.from_metadata(
                self._file.metadata,
                bos_token=self._token_text(self.tokenizer.bos_id),
                eos_token=self._token_text(self.tokenizer.eos_id),
            )
            # Where ChatML stands in for a missing template, its end mark may be plain text to this vocabulary.
            unknown_mark = self.template.is_fallback and len(self.tokenize(_CHATML_END, add_special=False)) != 1
            self._chat_stop = _CHATML_END if unknown_mark else None
            self.ctx = default_ctx(self._file, plan, ctx)
            options = Options(threads, parse_size("weight_memory", weight_memory), kv_type)
            program = choose(backend).compile(plan, self._file.tensors, options)
            if self.tokenizer.n_vocab != plan.n_vocab:
                raise ModelError(
                    f"{self.path}: the vocabulary has {self.tokenizer.n_vocab} tokens, but the model computes"
                    f" {plan.n_vocab} logits"
                )
            self._engine: Engine | None = Engine(program, self.tokenizer, ctx=self.ctx)
            # Whoever holds it may step the engine; requests of several threads then share its steps.
            self._lock = threading.RLock()
        except BaseException:
            self._file.close()
            raise

    @property
    def plan(self) -> Plan:
        """The steps that make up the model."""
        return self.engine.program.plan

    @property
    def engine(self) -> Engine:
        """What runs the requests."""
        if self._engine is None:
            raise RequestError("this LLM was closed; open the model again")
        return self._engine

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
        with self._lock:
            return self.engine.logits(ids)

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, stream: Literal[False] = False
    ) -> Completion: ...

    @overload
    def generate(self, prompt: Prompt, params: SamplingParams | None = None, *, stream: Literal[True]) -> Stream: ...

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, stream: bool = False
    ) -> Completion | Stream:
        """Continues a prompt: text, or token ids taken as they are. With `stream`, chunk by chunk."""
        if isinstance(prompt, str):
            ids = self.tokenize(prompt)
        elif isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
            if any(isinstance(part, str) for part in prompt):
                raise RequestError("the prompt is a list of texts, but one prompt at a time is taken")
            ids = [token for token in prompt if not isinstance(token, str)]
        else:
            raise RequestError(
                f"the prompt is of type {type(prompt).__name__}; text or a list of token ids was expected"
            )
        request = self.engine.prepare(ids, _checked(params))
        return Stream(self, request) if stream else self._complete(request)

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
    ) -> Completion | Stream:
        """Answers a conversation, laid out by the file's own chat template.

        `variables` are the template's own switches, such as enable_thinking. Control tokens that are written out in
        a message's content are control tokens, as in other engines: check content that you do not trust.
        """
        text = self.template.render(messages, tools=tools, documents=documents, **(variables or {}))
        params = _checked(params)
        if self._chat_stop is not None and self._chat_stop not in params.stop:
            params = replace(params, stop=(*params.stop, self._chat_stop))
        request = self.engine.prepare(self._tokenize_chat(text), params)
        return Stream(self, request) if stream else self._complete(request)

    def close(self) -> None:
        """Frees weights, cache and file; further calls are refused."""
        with self._lock:
            self._engine = None
            self._file.close()

    def __enter__(self) -> LLM:
        _ = self.engine  # says so where this was closed
        return self

    def __repr__(self) -> str:
        return f"LLM({str(self.path)!r}, ctx={self.ctx})"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, request: Request) -> None:
        with self._lock:
            self.engine.add(request)

    def _advance(self, request: Request) -> str:
        """New text of a request; where there is none yet, one step for all."""
        with self._lock:
            if not request.unread and request.finish_reason is None:
                self.engine.step()
            return request.take_unread()

    def _cancel(self, request: Request) -> None:
        with self._lock:
            if self._engine is not None:
                self._engine.cancel(request)

    def _complete(self, request: Request) -> Completion:
        self._add(request)
        try:
            while request.finish_reason is None:
                self._advance(request)
        finally:
            self._cancel(request)
        return Completion(
            text=request.text,
            token_ids=tuple(request.output),
            finish_reason=request.finish_reason,
            n_prompt_tokens=len(request.prompt),
            seed=request.sampler.seed,
        )

    def _tokenize_chat(self, text: str) -> list[int]:
        """Templates mostly write BOS themselves: it is added only where they did not. EOS never is."""
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids

    def _token_text(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_text(token)


def default_ctx(file: GGUFFile, plan: Plan, ctx: int | None) -> int:
    """The context asked for, checked against the model's limit, or the usual one."""
    limit = Keys(file.metadata, plan.architecture).positive("context_length")
    if ctx is None:
        return min(limit, DEFAULT_CTX)
    if isinstance(ctx, bool) or not isinstance(ctx, int) or not 1 <= ctx <= limit:
        raise RequestError(f"ctx is {ctx!r}; this model takes a whole number from 1 to {limit}")
    return ctx


def _checked(params: SamplingParams | None) -> SamplingParams:
    if params is None:
        return SamplingParams()
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params is of type {type(params).__name__}; SamplingParams(...) was expected")
    return params
