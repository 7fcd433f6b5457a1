"""Text completions and log-probabilities of texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from woolly.engine import Chunk
from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.bodies import CompletionBody
from woolly.serving.dialects.completions.chat import DONE
from woolly.serving.dialects.completions.envelope import Envelope, timings_of, usage_of
from woolly.serving.dialects.completions.logprobs import (
    LogprobTrack,
    PlacedLogprob,
    completion_logprobs,
    place_prompt,
    prompt_logprobs,
)
from woolly.serving.dialects.fill_in import fill_in
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.reply import json_reply, stream_reply
from woolly.serving.gate.request_id import client_of, owner_of
from woolly.serving.generation.generator import GenerationRequest, Generator
from woolly.serving.generation.running_request import RunningRequest
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.sse import TextFrame, sse_event


async def text_completions(body: CompletionBody, request: Request) -> Response:
    """Complete one or several prompts; `echo` with `logprobs` scores the prompts."""
    return await complete_texts(body, request, lambda running, reason: {})


async def complete_texts(
    body: CompletionBody, request: Request, more: Callable[[RunningRequest, str | None], Mapping[str, Any]]
) -> Response:
    """Complete the prompts; `more` returns fields for a complete reply from its first answer and finish reason."""
    body.check()
    generator: Generator = request.app.state.generator
    async with AsyncExitStack() as stack:
        params = _params(body, await generator.defaults_for(body.model, is_text=True))
        admitted = stack.enter_context(generator.admit(body.n or 1, n_prompts=len(body.prompts)))
        slot = await stack.enter_async_context(request.app.state.models.use(body.model))
        generations = [_generation(prompt, body, params, request) for prompt in await _prompts(body, generator, slot)]
        runnings = [await stack.enter_async_context(generator.open(one, admitted, slot)) for one in generations]
        if body.stream:
            dialect = request.app.state.dialects.of(request.url.path)
            envelope = Envelope("cmpl", "text_completion", runnings[0])
            beat = sse_event(envelope.around([_choice(0, "", None, None)]))
            return stream_reply(
                dialect, with_heartbeats(_frames(body, runnings, envelope), lambda: beat), stack.pop_all()
            )
        reply = await _reply(body, runnings)
        return json_reply({**reply, **more(runnings[0], reply["choices"][0]["finish_reason"])})


def _params(body: CompletionBody, defaults: SamplingParams) -> SamplingParams:
    overrides: dict[str, Any] = {"logprobs": body.logprobs}
    if body.logprobs is None and body.return_token_ids:
        overrides["logprobs"] = 0  # chunks carry the ids with the log-probabilities
    if body.echo and body.prompt_logprobs is None:
        overrides["prompt_logprobs"] = body.logprobs
    limit = 1 if body.is_empty else body.limit(defaults)  # the engine needs at least 1
    return body.make(replace(defaults, max_tokens=None), max_tokens=limit, **overrides)


async def _prompts(body: CompletionBody, generator: Generator, slot: ModelSlot) -> list[str | tuple[int, ...]]:
    """Return the prompts, converted to fill-in-the-middle tokens if there is a suffix."""
    suffix = body.suffix
    if not suffix:
        return body.prompts
    tokenizer = slot.model.tokenizer
    generator.check_characters(slot.model, [*body.prompts, suffix])
    texts = [prompt for prompt in body.prompts if isinstance(prompt, str)]
    return await run_in_thread(lambda: [tuple(fill_in(tokenizer, text, suffix)) for text in texts])


def _generation(
    prompt: str | tuple[int, ...], body: CompletionBody, params: SamplingParams, request: Request
) -> GenerationRequest:
    return GenerationRequest(
        params,
        prompt,
        body.model,
        body.is_empty,
        client=client_of(request),
        owner=owner_of(request),
        token_constraints=body.token_constraints,
    )


class _Text:
    """A completion in progress, including the echoed prompt."""

    def __init__(
        self, body: CompletionBody, running: RunningRequest, prompt: str | tuple[int, ...], index: int
    ) -> None:
        """`index` is the index among the n completions of the prompt."""
        self._tokenizer = running.tokenizer
        self._request = running.requests[index]
        self._wants_logprobs = body.logprobs is not None
        self._names_ids = bool(body.return_tokens_as_token_ids)
        self._has_stop = bool(body.include_stop_str_in_output)
        self._has_ids = bool(body.return_token_ids)
        self._is_scored = body.prompt_logprobs is not None
        if body.truncate_prompt_tokens is not None:
            prompt = self._request.given
        self._prompt = prompt
        self._echoed = ""
        if body.echo:
            self._echoed = prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
        self._is_echo = self._echoes = bool(body.echo)
        self._track = LogprobTrack(self._tokenizer, len(self._echoed))

    def next(self, chunk: Chunk) -> tuple[str, dict[str, Any] | None]:
        """Return the text and log-probabilities of a chunk. The first chunk includes the echoed prompt."""
        placed: list[PlacedLogprob] = []
        text = chunk.text
        if self._echoes:
            self._echoes = False
            text = self._echoed + text
            if self._wants_logprobs:
                placed += self._place_prompt()
        placed += self._track.push(chunk.text, chunk.logprobs)
        # Clients that score with echo and max_tokens=1 expect one generated token, even the end token.
        if self._is_echo and chunk.finish_reason is not None and not isinstance(self._request.stop_reason, str):
            placed += self._track.rest()
        if self._has_stop and chunk.finish_reason == "stop" and isinstance(self._request.stop_reason, str):
            text += self._request.stop_reason
        if not self._wants_logprobs:
            return text, None
        return text, completion_logprobs(self._tokenizer, placed, as_ids=self._names_ids)

    def ids_of(self, chunk: Chunk, *, is_first: bool) -> dict[str, Any]:
        """Return the token ids of a chunk as fields of a choice, if requested; the first chunk includes the prompt."""
        if not self._has_ids:
            return {}
        ids = {"token_ids": [one.token for one in chunk.logprobs]}
        return ids | {"prompt_token_ids": list(self._request.given)} if is_first else ids

    def of_prompt(self) -> dict[str, Any]:
        """Return the prompt's log-probabilities as a field of a choice, if requested."""
        if not self._is_scored:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._tokenizer, self._request.prompt_logprobs)}

    def _place_prompt(self) -> list[PlacedLogprob]:
        ids = self._request.prompt
        # The tokenizer adds BOS unless the text contains it.
        is_added = isinstance(self._prompt, str) and self._tokenizer.add_bos and ids[:1] == (self._tokenizer.bos_id,)
        return place_prompt(self._tokenizer, ids, (None, *self._request.prompt_logprobs), skips_first=is_added)


def _texts(body: CompletionBody, runnings: Sequence[RunningRequest]) -> list[_Text]:
    """Return the n completions of each prompt, prompt by prompt."""
    return [
        _Text(body, running, prompt, index)
        for running, prompt in zip(runnings, body.prompts, strict=True)
        for index in range(len(running.requests))
    ]


async def _reply(body: CompletionBody, runnings: Sequence[RunningRequest]) -> dict[str, Any]:
    texts = _texts(body, runnings)
    ended = await asyncio.gather(*(running.completion() for running in runnings))
    choices: list[dict[str, Any]] = []
    for one in (choice for completion in ended for choice in completion.choices):
        index = len(choices)
        text, chunk = texts[index], Chunk(one.text, one.finish_reason, logprobs=one.logprobs or ())
        more = {**text.ids_of(chunk, is_first=True), **text.of_prompt()}
        shown, logprobs = text.next(chunk)
        choices.append({**_choice(index, shown, logprobs, one.finish_reason), **more})
    envelope = Envelope("cmpl", "text_completion", runnings[0])
    return envelope.around(choices, usage=usage_of(runnings), timings=timings_of(runnings))


async def _frames(body: CompletionBody, runnings: Sequence[RunningRequest], envelope: Envelope) -> AsyncIterator[bytes]:
    async for chunk in _chunks(body, runnings, envelope):
        yield chunk if isinstance(chunk, bytes) else sse_event(chunk)
    yield sse_event(DONE)


async def _chunks(
    body: CompletionBody, runnings: Sequence[RunningRequest], envelope: Envelope
) -> AsyncIterator[dict[str, Any] | bytes]:
    """Yield the chunks; most differ only in their text and are yielded as bytes."""
    always: dict[str, Any] = {"usage": None} if body.includes_usage else {}
    texts = _texts(body, runnings)
    begun: set[int] = set()
    n_open, n_each = len(texts), len(texts) // len(runnings)
    has_more = bool(body.timings_per_token or body.has_continuous_usage or body.return_token_ids)
    is_plain = body.logprobs is None and not has_more
    plain: dict[int, TextFrame] = {}

    def frame(index: int, text: str) -> bytes:
        return sse_event(envelope.around([_choice(index, text, None, None)], **always))

    async for number, chunk in _merged(runnings):
        index = number * n_each + chunk.index
        if is_plain and chunk.finish_reason is None and index in begun:
            if index not in plain:
                plain[index] = TextFrame(partial(frame, index))
            if chunk.text:
                yield plain[index](chunk.text)
            continue
        n_open -= chunk.finish_reason is not None
        timed = {"timings": timings_of(runnings)} if body.timings_per_token or n_open == 0 else {}
        ids = texts[index].ids_of(chunk, is_first=index not in begun)
        shown, logprobs = texts[index].next(chunk)
        if shown or ids.get("token_ids") or chunk.finish_reason is not None:
            begun.add(index)
            used = {"usage": usage_of(runnings)} if body.has_continuous_usage else {}
            choice = {**_choice(index, shown, logprobs, chunk.finish_reason), **ids}
            yield envelope.around([choice], **{**always, **timed, **used})
    if body.includes_usage:
        yield envelope.around([], usage=usage_of(runnings), timings=timings_of(runnings))


async def _merged(runnings: Sequence[RunningRequest]) -> AsyncIterator[tuple[int, Chunk]]:
    """Yield the chunks of all requests as they arrive. An exception in one request ends all requests."""
    if len(runnings) == 1:
        async for chunk in runnings[0]:
            yield 0, chunk
        return
    arrived: asyncio.Queue[tuple[int, Chunk | Exception | None]] = asyncio.Queue()

    async def read(number: int, running: RunningRequest) -> None:
        try:
            async for chunk in running:
                arrived.put_nowait((number, chunk))
            arrived.put_nowait((number, None))
        except Exception as error:
            arrived.put_nowait((number, error))

    tasks = [asyncio.create_task(read(number, running)) for number, running in enumerate(runnings)]
    n_open = len(tasks)
    try:
        while n_open:
            number, item = await arrived.get()
            if item is None:
                n_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
