"""RequestMixin: creates requests from prompts and conversations, without queueing them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.chat import ChatFormat, Modalities, format_chat
from woolly.chat.compaction import compaction_request, max_summary_tokens, without_oldest
from woolly.chat.media import cannot_take
from woolly.engine import EngineDriver, Request, RequestOptions
from woolly.errors import RequestError, TemplateError
from woolly.llm.media_tokens import audio_tokens, encode_chat, image_tokens
from woolly.llm.options import ChatOptions, GenerateOptions
from woolly.llm.presets import with_system
from woolly.llm.prompts import (
    Chats,
    Messages,
    is_list_of_chats,
    is_list_of_prompts,
    params_of_each,
    read_chat,
    read_ids,
    split_options,
)
from woolly.runtime import PAGE_SIZE
from woolly.sampling import SamplingParams
from woolly.sampling.seeds import draw_seed

if TYPE_CHECKING:
    from woolly.multimodal import Audio, Image, Placeholder
    from woolly.store import Preset
    from woolly.templates import ChatTemplate
    from woolly.tokens import Tokenizer

Ids = npt.NDArray[np.integer[Any]]
Prompt = str | Sequence[int] | Ids
Prompts = list[str] | list[list[int]] | list[Ids] | tuple[str, ...] | tuple[list[int], ...]
Params = SamplingParams | Sequence[SamplingParams]

_INNER = [field.name for field in fields(RequestOptions)]
_SEARCH = 2.0  # seconds to search for the tool with the invalid schema


class RequestMixin:
    """Methods of LLM that render, tokenize and validate prompts. Thread-safe."""

    tokenizer: Tokenizer
    template: ChatTemplate
    driver: EngineDriver
    preset: Preset | None  # default system prompt and sampling
    defaults: SamplingParams
    keeps_shared = False  # set if another process reuses shared prefixes
    modalities: Modalities | None = None  # None: text only

    def prepare(self, prompt: Prompt | Prompts, params: Params | None = None, **options: Any) -> list[list[Request]]:
        """Return the requests of each prompt, one per answer.

        `options` are options of `generate` and of the engine (`RequestOptions`).
        """
        sampling, options = split_options("LLM.generate", options, [*GenerateOptions.__annotations__, *_INNER])
        if sampling.get("reasoning_budget") is not None:
            raise RequestError(
                "reasoning_budget needs the reasoning markers of a chat template; use chat",
                field="reasoning_budget",
            )
        its_options = RequestOptions(**options)
        if not is_list_of_prompts(prompt):
            (its,) = params_of_each(params, 1, sampling, self.defaults)
            return [self._requests(self._ids(prompt), its, its_options)]
        given = params_of_each(params, len(prompt), sampling, self.defaults)
        groups = []
        for i, (one, its) in enumerate(zip(prompt, given, strict=True)):
            try:
                groups.append(self._requests(self._ids(one), its, its_options))
                its_options = replace(its_options, group=groups[0][0].group)
            except RequestError as error:
                raise error.with_message(f"prompt {i}: {error}", RequestError) from error
        return groups

    def prepare_chats(
        self, messages: Messages | Chats, params: Params | None = None, **options: Any
    ) -> list[tuple[ChatFormat, list[Request]]]:
        """Return the layout of each conversation and its requests, as in `prepare`."""
        sampling, options = split_options("LLM.chat", options, ChatOptions.__annotations__)
        if not is_list_of_chats(messages):
            (its,) = params_of_each(params, 1, sampling, self.defaults)
            return [self._prepare_chat(messages, its, **options)]
        given = params_of_each(params, len(messages), sampling, self.defaults)
        chats = []
        for i, (one, its) in enumerate(zip(messages, given, strict=True)):
            try:
                chats.append(self._prepare_chat(one, its, **options))
            except RequestError as error:
                raise error.with_message(f"conversation {i}: {error}", RequestError) from error
            except TemplateError as error:
                raise TemplateError(f"conversation {i}: {error}") from error
        return chats

    def prepare_chat(
        self, messages: Messages | Chats, params: Params | None = None, **options: Any
    ) -> tuple[ChatFormat, list[Request]]:
        """Return the layout of a conversation and its requests; raise RequestError for a list of conversations."""
        if is_list_of_chats(messages):
            raise RequestError("streaming takes one conversation, but got a list")
        return self.prepare_chats(messages, params, **options)[0]

    def prepare_note(
        self, messages: Messages, params: SamplingParams | None = None, **options: Any
    ) -> tuple[ChatFormat, list[Request]]:
        """Return the request for a summary of a conversation, as in `prepare_chat`.

        If the context has no room for a summary, the oldest messages are dropped, except for the first question.
        """
        sampling, options = split_options("LLM.compact", options, ChatOptions.__annotations__)
        (its,) = params_of_each(params, 1, sampling, self.defaults)
        inner = {name: options.pop(name) for name in ("timeout", "priority") if name in options}
        chat = with_system(self.preset, read_chat(messages, its, **options))
        ctx = self.driver.engine.ctx
        asked = compaction_request(chat, max_summary_tokens(ctx))
        while True:
            layout = format_chat(asked, self.template, self.tokenizer, self.modalities)
            is_long = self.count_tokens(layout) + (asked.params.max_tokens or 0) > ctx
            left = without_oldest(asked.messages) if is_long else None
            if left is None:
                return layout, self.prepare_layout(layout, **inner)
            asked = replace(asked, messages=left)

    def prepare_layout(
        self,
        layout: ChatFormat,
        before: Sequence[int] = (),
        cut: Callable[[Sequence[int]], Sequence[int]] | None = None,
        **options: Any,
    ) -> list[Request]:
        """Return the requests of a rendered conversation, as in `prepare`.

        `before` are ids of earlier turns, to which the text of the layout is appended; `cut` shortens the ids.
        """
        ids: Sequence[int | Placeholder] = self._encoded(layout)
        if before:
            ids = [*before, *self._encode(layout.text)]
        if cut is not None and not layout.media:  # an image must not be cut
            ids = cut([id for id in ids if isinstance(id, int)])
        shared = 0 if before else self._n_shared(layout, ids)  # the beginning was removed, so nothing is shared
        settings = RequestOptions(
            shown=layout.shown, reasoning_markers=layout.reasoning_markers, n_shared=shared, **options
        )
        try:
            return self._requests(ids, layout.params, settings)
        except RequestError as error:
            if layout.made_of != "tools" or error.code == "context_length":
                raise
            raise self._fault_of_tool(layout) or error from None

    def _fault_of_tool(self, layout: ChatFormat) -> RequestError | None:
        """Return an error that names the tool whose schema is invalid, or None if the search takes too long.

        A single grammar covers the schemas of all tools, and its error names no tool.
        """
        from woolly.grammar import GrammarCompiler

        compiler, until = GrammarCompiler(self.tokenizer), time.monotonic() + _SEARCH
        for tool in layout.choice.callable:
            try:
                compiler.compile("json_schema", json.dumps(tool.schema))
            except RequestError as error:
                return RequestError(f"the arguments of the tool {tool.name!r}: {error}", field="tools", names=())
            if time.monotonic() > until:
                break
        return None

    def count_tokens(self, layout: ChatFormat) -> int:
        """Return the number of tokens of a rendered conversation, which may exceed the context."""
        return sum(1 if isinstance(id, int) else id.n for id in self._encoded(layout))

    def tokenize_layout(self, layout: ChatFormat) -> list[int]:
        """Return the token ids of a rendered conversation, with placeholder id 0 for each embedding row."""
        parts = ([id] if isinstance(id, int) else [0] * id.n for id in self._encoded(layout))
        return [id for part in parts for id in part]

    def image_tokens(self, image: Image) -> int:
        """Return the number of context tokens of an image; raise RequestError if the model does not support images."""
        if self.modalities is None or self.modalities.vision is None:
            raise RequestError(cannot_take("image", self.modalities))
        return image_tokens(image, self.modalities.vision, self._encode)

    def audio_tokens(self, audio: Audio) -> int:
        """Return the number of context tokens of an audio clip; raise RequestError without audio support."""
        if self.modalities is None or self.modalities.audio is None:
            raise RequestError(cannot_take("audio", self.modalities))
        return audio_tokens(audio, self.modalities.audio, self._encode)

    def prepare_score(self, prompt: Prompt) -> Request:
        """Return the request for `Score.of`."""
        options = RequestOptions(score_only=True)
        return self.driver.engine.new_request(self._ids(prompt), SamplingParams(prompt_logprobs=0), options)

    def _prepare_chat(
        self,
        messages: Any,
        params: SamplingParams,
        timeout: float | None = None,
        priority: int = 0,
        replay_tokens: Sequence[int] = (),
        **options: Any,
    ) -> tuple[ChatFormat, list[Request]]:
        chat = with_system(self.preset, read_chat(messages, params, **options))
        layout = format_chat(chat, self.template, self.tokenizer, self.modalities)
        return layout, self.prepare_layout(layout, timeout=timeout, priority=priority, replay_tokens=replay_tokens)

    def _requests(self, ids: Sequence[Any], params: SamplingParams, options: RequestOptions) -> list[Request]:
        engine = self.driver.engine
        if params.n > 1 and params.seed is None:
            # The seeds of the answers are consecutive, as with a given seed.
            params = replace(params, seed=draw_seed())
        first = engine.new_request(ids, params, options)
        others = (replace(options, index=index, beside=first) for index in range(1, params.n))
        return [first, *(engine.new_request(ids, params, its) for its in others)]

    def _ids(self, prompt: Any) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        return read_ids(prompt)

    def tokenize_chat(self, text: str) -> list[int]:
        """Return the token ids of a rendered prompt. Adds BOS unless the template did, and never adds EOS."""
        ids = self._encode(text)
        return [*self._missing_bos(ids), *ids]

    def _encoded(self, layout: ChatFormat) -> Sequence[int | Placeholder]:
        """Return the tokens of a rendered conversation, with placeholders for images and audio."""
        if not layout.media or self.modalities is None:
            return self.tokenize_chat(layout.text)
        ids = encode_chat(layout, self.modalities, self._encode)
        return [*self._missing_bos(ids), *ids]

    def _n_shared(self, layout: ChatFormat, ids: Sequence[int | Placeholder]) -> int:
        """Return the number of tokens of system prompt and tools, or 0 if the cache does not use this number."""
        if not (self.keeps_shared or self.driver.engine.keeps_shared):
            return 0
        n_characters = layout.shared_length()
        first = self.tokenize_chat(layout.text[:n_characters]) if n_characters >= PAGE_SIZE else []
        alike = (a == b for a, b in zip(first, ids, strict=False))
        return next((i for i, is_alike in enumerate(alike) if not is_alike), min(len(first), len(ids)))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=True)

    def _missing_bos(self, ids: Sequence[object]) -> list[int]:
        """Return the BOS token if the file requires it and the template did not add it."""
        bos = self.tokenizer.bos_id
        return [bos] if self.tokenizer.add_bos and bos is not None and list(ids[:1]) != [bos] else []
