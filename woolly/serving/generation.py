"""The Generator: from a request of any dialect to the chunks of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from woolly.engine import SamplingParams
from woolly.engine import Sequence as Request
from woolly.errors import RequestError
from woolly.llm import LLM
from woolly.serving.admission import Admission, Place
from woolly.serving.errors import ApiError, answer_cancelled
from woolly.serving.holding import run_held
from woolly.serving.logs import log
from woolly.serving.metrics import Stats
from woolly.serving.models import Loaded, ModelManager
from woolly.serving.running import Mailroom, Running
from woolly.serving.settings import Settings
from woolly.serving.tools import MarkDetokenizer

__all__ = ["Generation", "Generator", "Running"]

# No text has so many characters per token: a longer prompt cannot fit, and is not tokenized to find out.
_CHARACTERS_PER_TOKEN = 256

_TEXTS = 2  # requests for text or tokens alone that are worked on at once; they take no place among the answers


@dataclass(frozen=True)
class Generation:
    """What is asked for: a prompt as text or ids, or messages, and how to answer."""

    params: SamplingParams
    model: str | None = None  # None: the one that answers
    prompt: str | tuple[int, ...] | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    documents: tuple[Mapping[str, Any], ...] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)  # the template's own switches
    add_special: bool = True  # BOS before a prompt that is text, as the model's file says
    score_only: bool = False  # nothing is generated; for params.prompt_logprobs
    client: str = ""  # who asks, for the log
    shown: frozenset[int] = frozenset()  # control tokens that are text to the client, such as those around calls


class Generator:
    """Admits requests, lays them out off the event loop, and hands them to the engine's thread."""

    def __init__(self, settings: Settings, models: ModelManager, stats: Stats) -> None:
        self._settings = settings
        self._models = models
        self._stats = stats
        self._mailroom: Mailroom | None = None
        self._running: set[Running] = set()
        self.defaults = settings.defaults()  # what a request gets that does not say otherwise
        self.admission = Admission(settings.parallel, settings.max_queue)
        self.texts = asyncio.Semaphore(_TEXTS)  # held by those who only tokenize or lay out

    @property
    def running(self) -> tuple[Running, ...]:
        """What the engine has at present."""
        return tuple(self._running)

    def stop(self) -> None:
        """Cancels all that runs; its readers get a 503."""
        for running in self.running:
            running.cancel()

    def place(self, n: int = 1, *, n_prompts: int = 1) -> AbstractContextManager[Place]:
        """Room for n answers to each prompt, taken before anything is done for them.

        ApiError 429 or 503 at once where there is none, 400 where there never could be.
        """
        return self.admission.place(n, self._stats.seconds_per_answer, n_prompts=n_prompts)

    @asynccontextmanager
    async def open(
        self, generation: Generation, place: Place | None = None, slot: Loaded | None = None
    ) -> AsyncIterator[Running]:
        """Runs a request for as long as the block does; what has not finished then is cancelled.

        `place` and `slot` are those that the caller holds until then; without them, they are taken here. Who opens
        several needs one slot for all: a model that is to be unloaded waits for the first, and the second for that.
        ApiError 400 for what cannot be served.
        """
        async with AsyncExitStack() as held:
            if place is None:
                place = held.enter_context(self.place(generation.params.n))
            if slot is None:
                slot = await held.enter_async_context(self._models.use(generation.model))
            yield await held.enter_async_context(self.open_made(lambda _: generation, place, slot))

    @asynccontextmanager
    async def open_made(self, make: Callable[[LLM], Generation], place: Place, slot: Loaded) -> AsyncIterator[Running]:
        """As `open`, for a request that depends on the model: it is made on the thread that prepares it."""
        llm = slot.model

        def prepare() -> tuple[Generation, list[Request]]:
            generation = make(llm)
            return generation, self._prepare(llm, generation)

        with _told_if_closed(llm):
            generation, requests = await run_held(prepare)
        if self._mailroom is None:
            self._mailroom = Mailroom()
        running = Running(llm.driver, llm.tokenizer, slot.info, requests, self._mailroom, place.arrived)
        self._log_text(generation, "prompt", running.prompt_text if self._settings.log_prompts else "")
        self._running.add(running)
        try:
            with _told_if_closed(llm):
                running.start()
            yield running
        finally:
            self._running.discard(running)
            running.cancel()
            self._settle(generation, running)

    def check_characters(self, llm: LLM, values: Iterable[Any]) -> None:
        """ApiError 400 where the texts among values of JSON are too long for any prompt, before work is done for them.

        Those may be tokenized that are too long by a little, so as to learn by how much.
        """
        n = _n_characters(values)
        _check_length(f"has {n} characters", n // _CHARACTERS_PER_TOKEN, self._most(llm))

    def _most(self, llm: LLM) -> int:
        """Tokens that a prompt may have."""
        return min(self._settings.max_prompt or llm.ctx, llm.ctx)

    def _settle(self, generation: Generation, running: Running) -> None:
        usage, timings = running.usage(), running.timings()
        self._stats.answered(running.reasons(), usage, timings)
        log.info(
            "answered",
            extra={
                "client": generation.client or None,
                "model": running.model.name,
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["cached_tokens"],
                "completion_tokens": usage["completion_tokens"],
                "first_token_ms": timings["prompt_ms"],
                "reason": ",".join(running.reasons()),
            },
        )
        if self._settings.log_prompts:
            for request in running.requests:
                self._log_text(generation, "answer", request.text)

    def _log_text(self, generation: Generation, what: str, text: str) -> None:
        if self._settings.log_prompts:
            log.info(what, extra={"client": generation.client or None, "text": text})

    def _prepare(self, llm: LLM, generation: Generation) -> list[Request]:
        """Templates, tokenizes and checks; on a thread of the pool, because a long prompt takes a while."""
        timeout = self._settings.request_timeout or None
        most = self._most(llm)
        params = generation.params
        if generation.messages is not None:
            _check_chat(llm, generation, most)
            requests = llm.prepare_chat(
                generation.messages,
                params,
                tools=generation.tools,
                documents=generation.documents,
                variables=generation.variables,
                timeout=timeout,
                score_only=generation.score_only,
            )
        else:
            prompt = generation.prompt
            if prompt is None:
                raise ApiError(400, "invalid_request", "neither a prompt nor messages are given", param="prompt")
            if isinstance(prompt, str):
                _check_length(f"has {len(prompt)} characters", len(prompt) // _CHARACTERS_PER_TOKEN, most)
                prompt = tuple(llm.tokenize(prompt, add_special=generation.add_special))
            _check_length(f"has {len(prompt)} tokens", len(prompt), most)
            (requests,) = llm.prepare(prompt, params, timeout=timeout, score_only=generation.score_only)
        _check_length(f"has {len(requests[0].prompt)} tokens", len(requests[0].prompt), most)
        if generation.shown:
            for request in requests:
                request.detokenizer = MarkDetokenizer(llm.tokenizer, generation.shown)
        return requests


@contextmanager
def _told_if_closed(llm: LLM) -> Iterator[None]:
    """A model may be freed under a request, by the end of grace or of the server: no fault of the request."""
    try:
        yield
    except RequestError:
        try:
            _ = llm.engine
        except RequestError:
            raise answer_cancelled() from None
        raise


def _check_chat(llm: LLM, generation: Generation, most: int) -> None:
    """Refuses a conversation whose text cannot fit, before it is tokenized.

    A template adds little to what it is given, so that only a long conversation is laid out to see; one that fits is
    then laid out twice, which takes a small part of the time for its tokens.
    """
    given = (generation.messages or (), generation.tools or (), generation.documents or ())
    if _n_characters(given) > most * _CHARACTERS_PER_TOKEN:
        text = llm.template.render(
            generation.messages or (),
            tools=generation.tools,
            documents=generation.documents,
            **generation.variables,
        )
        _check_length(f"has {len(text)} characters", len(text) // _CHARACTERS_PER_TOKEN, most)


def _n_characters(values: Iterable[Any]) -> int:
    """Characters of all texts in what JSON can hold."""
    n = 0
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            n += len(value)
        elif isinstance(value, Mapping):
            stack += value.values()
        elif isinstance(value, (list, tuple)):
            stack += value
    return n


def _check_length(what: str, n_tokens: int, most: int) -> None:
    if n_tokens > most:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"the prompt {what}, and this server takes at most {most} tokens; shorten it",
            param="prompt",
        )
