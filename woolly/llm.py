"""LLM: load, generate, chat, logits, tokenize. The library's face."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from woolly.engine import Engine, FinishReason, SamplingParams
from woolly.engine import Sequence as Request
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import Keys, trace
from woolly.plan import Plan
from woolly.runtime import Options, choose, parse_size
from woolly.store import resolve
from woolly.text import ChatTemplate, Tokenizer

__all__ = ["LLM", "Chunk", "Completion"]

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

# Where the file allows more, a context is taken that fits small machines; `ctx=` asks for another.
DEFAULT_CTX = 8192


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


class LLM:
    """A model that is ready to answer.

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
            limit = Keys(self._file.metadata, plan.architecture).positive("context_length")
            self.ctx = min(limit, DEFAULT_CTX) if ctx is None else ctx
            if isinstance(self.ctx, bool) or not isinstance(self.ctx, int) or not 1 <= self.ctx <= limit:
                raise RequestError(f"ctx is {ctx!r}; this model takes a whole number from 1 to {limit}")
            options = Options(threads, parse_size("weight_memory", weight_memory), kv_type)
            program = choose(backend).compile(plan, self._file.tensors, options)
            self._engine: Engine | None = Engine(program, self.tokenizer, ctx=self.ctx)
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
        return self.engine.logits(ids)

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, stream: Literal[False] = False
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, stream: Literal[True]
    ) -> Iterator[Chunk]: ...

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, stream: bool = False
    ) -> Completion | Iterator[Chunk]:
        """Continues a prompt: text, or token ids taken as they are. With `stream`, chunk by chunk."""
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        request = self.engine.add(ids, params or SamplingParams())
        return self._stream(request) if stream else self._complete(request)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: Literal[False] = False,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: Literal[True],
    ) -> Iterator[Chunk]: ...

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: bool = False,
    ) -> Completion | Iterator[Chunk]:
        """Answers a conversation, laid out by the file's own chat template."""
        text = self.template.render(messages, tools=tools, add_generation_prompt=True)
        request = self.engine.add(self._tokenize_chat(text), params or SamplingParams())
        return self._stream(request) if stream else self._complete(request)

    def close(self) -> None:
        """Frees weights, cache and file; further calls are refused."""
        self._engine = None
        self._file.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _stream(self, request: Request) -> Iterator[Chunk]:
        for text in self.engine.stream(request):
            yield Chunk(text)
        yield Chunk("", request.finish_reason)

    def _complete(self, request: Request) -> Completion:
        for _ in self.engine.stream(request):
            pass
        assert request.finish_reason is not None
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
