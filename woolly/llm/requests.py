"""The RequestMaker: turns prompts and conversations into requests that are not queued yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from woolly.chat import Layout, lay_out
from woolly.engine import EngineDriver, Request, RequestOptions
from woolly.errors import RequestError, TemplateError
from woolly.llm.options import ChatOptions, GenerateOptions
from woolly.llm.presets import with_system
from woolly.llm.prompts import (
    Chats,
    Messages,
    is_list_of_chats,
    is_list_of_prompts,
    params_of_each,
    read_chat,
    split_options,
)
from woolly.sampling import SamplingParams
from woolly.sampling.seeds import draw_seed
from woolly.store import Preset
from woolly.templates import ChatTemplate
from woolly.tokens import Tokenizer

__all__ = ["Params", "Prompt", "Prompts", "RequestMaker"]

Prompt = str | Sequence[int]
Prompts = list[str] | list[list[int]] | tuple[str, ...] | tuple[list[int], ...]
Params = SamplingParams | Sequence[SamplingParams]

_INNER = [field.name for field in fields(RequestOptions)]


class RequestMaker:
    """The part of LLM that renders, tokenizes and checks; any thread may call it."""

    tokenizer: Tokenizer
    template: ChatTemplate
    driver: EngineDriver
    preset: Preset | None  # system prompt and sampling where a call gives none
    defaults: SamplingParams

    def prepare(self, prompt: Prompt | Prompts, params: Params | None = None, **options: Any) -> list[list[Request]]:
        """Returns the requests of each prompt, one for each of its n answers.

        `options` are those of `generate` and of the engine (`RequestOptions`).
        """
        sampling, options = split_options("LLM.generate", options, [*GenerateOptions.__annotations__, *_INNER])
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
                raise error.retold(f"prompt {i}: {error}", RequestError) from error
        return groups

    def prepare_chats(
        self, messages: Messages | Chats, params: Params | None = None, **options: Any
    ) -> list[tuple[Layout, list[Request]]]:
        """Returns the layout of each conversation, and its requests as `prepare` does."""
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
                raise error.retold(f"conversation {i}: {error}", RequestError) from error
            except TemplateError as error:
                raise TemplateError(f"conversation {i}: {error}") from error
        return chats

    def prepare_chat(
        self, messages: Messages | Chats, params: Params | None = None, **options: Any
    ) -> tuple[Layout, list[Request]]:
        """Returns the layout of one conversation and its requests; RequestError for a list of conversations."""
        if is_list_of_chats(messages):
            raise RequestError("messages is a list of conversations, but one at a time can be streamed")
        return self.prepare_chats(messages, params, **options)[0]

    def prepare_layout(
        self,
        layout: Layout,
        before: Sequence[int] = (),
        cut: Callable[[Sequence[int]], Sequence[int]] | None = None,
        **options: Any,
    ) -> list[Request]:
        """Returns the requests of a conversation that is laid out, as `prepare` does.

        `before` are ids of earlier turns, which the text of the layout follows; `cut` returns those that are kept.
        """
        ids: Sequence[int] = self.tokenize_chat(layout.text)
        if before:
            ids = [*before, *self.tokenizer.encode(layout.text, add_special=False, parse_special=True)]
        ids = ids if cut is None else cut(ids)
        return self._requests(ids, layout.params, RequestOptions(shown=layout.shown, **options))

    def count_tokens(self, layout: Layout) -> int:
        """Returns the number of tokens of a conversation that is laid out, which may be more than the context holds."""
        return len(self.tokenize_chat(layout.text))

    def prepare_score(self, prompt: Prompt) -> Request:
        """As `prepare`, for `Score.of`."""
        options = RequestOptions(score_only=True)
        return self.driver.engine.new_request(self._ids(prompt), SamplingParams(prompt_logprobs=0), options)

    def _prepare_chat(
        self,
        messages: Any,
        params: SamplingParams,
        timeout: float | None = None,
        priority: int = 0,
        expected: Sequence[int] = (),
        **options: Any,
    ) -> tuple[Layout, list[Request]]:
        chat = with_system(self.preset, read_chat(messages, params, **options))
        layout = lay_out(chat, self.template, self.tokenizer)
        return layout, self.prepare_layout(layout, timeout=timeout, priority=priority, expected=expected)

    def _requests(self, ids: Sequence[int], params: SamplingParams, options: RequestOptions) -> list[Request]:
        engine = self.driver.engine
        if params.n > 1 and params.seed is None:
            # The answers' seeds follow each other, as with a seed that is given.
            params = replace(params, seed=draw_seed())
        first = engine.new_request(ids, params, options)
        others = (replace(options, index=index, beside=first) for index in range(1, params.n))
        return [first, *(engine.new_request(ids, params, its) for its in others)]

    def _ids(self, prompt: Any) -> Sequence[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            raise RequestError(
                f"the prompt is of type {type(prompt).__name__}; text or a list of token ids was expected"
            )
        return prompt

    def tokenize_chat(self, text: str) -> list[int]:
        """Returns the ids of a rendered prompt; adds BOS if the template did not write it, and never EOS."""
        ids = self.tokenizer.encode(text, add_special=False, parse_special=True)
        bos = self.tokenizer.bos_id
        return [bos, *ids] if self.tokenizer.add_bos and bos is not None and ids[:1] != [bos] else ids
