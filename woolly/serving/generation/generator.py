"""Runs requests of any dialect and yields the chunks of their answers."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from woolly.chat import ChatFormat, ChatRequest, Modalities, format_chat
from woolly.chat.media import has_media
from woolly.engine import Hook, Request
from woolly.engine.threads.chunk_queue import LoopNotifier
from woolly.errors import RequestError, StoreError
from woolly.llm import LLM
from woolly.llm.presets import defaults_of, with_system
from woolly.multimodal import Prompt
from woolly.sampling import SamplingParams
from woolly.serving.accounts.account import current_account
from woolly.serving.accounts.usage_meter import UsageMeter
from woolly.serving.errors import ApiError, answer_cancelled
from woolly.serving.generation.admission import Admission, Admitted
from woolly.serving.generation.prompt_length import check_characters, check_length, check_text
from woolly.serving.generation.read_ahead_tasks import ReadAheadTasks
from woolly.serving.generation.request_defaults import with_defaults
from woolly.serving.generation.running_request import RunningRequest
from woolly.serving.generation.slots import SlotTable
from woolly.serving.generation.thread_pool import run_in_thread, start_task
from woolly.serving.generation.token_constraints import UNCONSTRAINED, TokenConstraints
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.observability.logs import ignore, log
from woolly.serving.observability.metrics import Stats
from woolly.serving.observability.request_history import answer_log, record_answer
from woolly.serving.settings.table import Settings
from woolly.store import find_preset

# Priority of the current task's requests; rows of a batch have a lower priority than interactive requests.
request_priority: ContextVar[int] = ContextVar("woolly_urgency", default=0)

# Fairness group of the current task's requests (`Request.group`). None: each request is its own group.
fairness_group: ContextVar[int | None] = ContextVar("woolly_fairness_group", default=None)

_DEFAULT_CONCURRENT = 16  # concurrent answers before a model is loaded

_DECODING = 4  # requests whose images are decoded concurrently

_TEXTS = 2  # concurrent requests that only tokenize or render; they use no admission capacity


@dataclass(frozen=True)
class GenerationRequest:
    """Request independent of the dialect: a prompt as text, token ids or rendered chat, and sampling parameters."""

    params: SamplingParams  # ignored if the prompt is a chat, which has its own
    prompt: str | Prompt | ChatFormat  # token ids may have placeholders for audio embeddings
    model: str | None = None  # None: the loaded model
    score_only: bool = False  # generate nothing; only score the prompt (params.prompt_logprobs)
    client: str = ""  # name of the client in the log
    owner: str = ""  # owner of reusable cached prefixes; see --share-prefixes
    reports_progress: bool = False  # chunks report the prefill progress
    id_slot: int = -1  # slot that records the request's tokens; -1: any slot
    token_constraints: TokenConstraints = UNCONSTRAINED
    context_ids: tuple[int, ...] = ()  # token ids of earlier turns, which precede a layout
    hooks: Mapping[str | int, Hook] | None = None  # hooks on intermediate values of steps; not supported for layouts
    is_part: bool = False  # one of several parts of a reply, which is logged once


class Generator:
    """Admits requests, prepares them off the event loop and passes them to the engine's thread.

    A request acquires its resources in a fixed order and releases them in reverse: body bytes (gate/request_body.py),
    admission (`admit`), the model's slot (`ModelManager.use`), running answers (`open`). A request must use one slot
    for all its prompts: unloading a model waits for the users of its slot, and a second `use` waits for the unload, so
    one slot per prompt would deadlock.
    """

    def __init__(self, settings: Settings, models: ModelManager, stats: Stats, meter: UsageMeter | None = None) -> None:
        self.meter = UsageMeter() if meter is None else meter
        self._settings = settings
        self._models = models
        self._stats = stats
        self._notifier: LoopNotifier | None = None
        self._running: set[RunningRequest] = set()
        self._defaults = settings.defaults()  # for models without a preset
        self._structure = settings.structure()
        self.adapter_scales = tuple(scale for _, scale in settings.adapters)  # for requests without adapter scales
        self.slots = SlotTable(self.max_concurrent)
        self.admission = Admission(self.max_concurrent, settings.max_queue)
        self.read_ahead_tasks = ReadAheadTasks(self.admission)
        # Images are decoded and fetched on separate threads, so that chats with images do not delay text-only chats.
        self.media_pool = ThreadPoolExecutor(_DECODING, "woolly-media")
        self.texts = asyncio.Semaphore(_TEXTS)  # acquired by requests that only tokenize or render

    def max_concurrent(self) -> int:
        """Return the maximum number of concurrent answers: --parallel, or the maximum of the loaded models."""
        if (most := self._settings.parallel) is not None:
            return int(most)
        loaded = [slot.llm for slot in self._models.loaded_models if slot.llm is not None and not slot.llm.is_closed]
        return max((llm.engine.scheduler.max_running for llm in loaded), default=_DEFAULT_CONCURRENT)

    @property
    def running(self) -> tuple[RunningRequest, ...]:
        """Return the requests that are running in the engine."""
        return tuple(self._running)

    def stop(self) -> None:
        """Cancel all running requests; their clients get a 503."""
        self.read_ahead_tasks.cancel_all()
        for running in self.running:
            running.cancel()

    @contextmanager
    def admit(self, n: int = 1, *, n_prompts: int = 1) -> Iterator[Admitted]:
        """Reserve capacity for n answers to each prompt, before any work is done for them.

        Raises ApiError 429 or 503 immediately if there is no capacity or the account has reached a limit, and 400 if
        the request exceeds the total capacity.
        """
        with self.admission.admit(n, self._stats.seconds_per_answer, n_prompts=n_prompts) as admitted:
            self.meter.admit(current_account.get())
            self.read_ahead_tasks.cancel_all()
            yield admitted

    @asynccontextmanager
    async def open(
        self, generation: GenerationRequest, admitted: Admitted | None = None, slot: ModelSlot | None = None
    ) -> AsyncIterator[RunningRequest]:
        """Run a request while the block runs; unfinished answers are cancelled at the end.

        If `admitted` or `slot` is None, `open` acquires it; otherwise the caller must hold it for the duration of the
        block. When opening several requests, pass the same slot to all of them. With separate slots, an unload waits
        for the first request while the second waits for the unload. Raises ApiError 400 for an invalid request.
        """
        async with AsyncExitStack() as stack:
            if admitted is None:
                admitted = stack.enter_context(self.admit(generation.params.n))
            if slot is None:
                slot = await stack.enter_async_context(self._models.use(generation.model))
            yield await stack.enter_async_context(self._run(generation, admitted, slot))

    async def format_chat(self, chat: ChatRequest, slot: ModelSlot, model: str | None) -> ChatFormat:
        """Render a chat with the model's template, off the event loop. `model` is the name in the request.

        An unsupported reasoning effort other than "none" is ignored, because agents always send an effort.
        """
        derived = await self._models.find_derived(model)
        try:
            return await self._render(
                with_defaults(chat, slot.model, self._settings, derived, self._structure), slot.model
            )
        except RequestError as error:
            if error.field != "reasoning_effort" or chat.reasoning.effort in (None, "none"):
                raise
        ignore("reasoning_effort (not supported by the model)")
        plain = with_system(derived, replace(chat, reasoning=replace(chat.reasoning, effort=None)))
        return await self._render(with_defaults(plain, slot.model, self._settings, None, self._structure), slot.model)

    async def _render(self, chat: ChatRequest, llm: LLM) -> ChatFormat:
        pool = self.media_pool if has_media(chat.messages) else None
        return await run_in_thread(format_chat, chat, llm.template, llm.tokenizer, self.load_modalities(llm), pool=pool)

    def with_defaults(self, chat: ChatRequest, slot: ModelSlot) -> ChatRequest:
        """Return the chat with the defaults of the model's preset and the server."""
        return with_defaults(chat, slot.model, self._settings, None, self._structure)

    def load_modalities(self, llm: LLM) -> Modalities | None:
        """Return the model's modalities with the server's setting for remote URLs, or None for a text-only model."""
        modalities = llm.modalities
        return None if modalities is None else replace(modalities, allows_remote=self._settings.allow_remote_images)

    async def defaults_for(self, model: str | None, *, is_text: bool = False) -> SamplingParams:
        """Return the default sampling parameters: the model's preset, or else the server's settings.

        `is_text` adds the default structure, which chats get later, unless they offer tools.
        """
        info = await self._models.resolve(model)
        slot = self._models.ready(info.name)
        try:
            # A loaded model keeps the preset it was loaded with, which determined its system prompt and context.
            preset = await asyncio.to_thread(find_preset, info.path) if slot is None else slot.model.preset
            defaults = replace(self._defaults, **self._structure) if is_text else self._defaults
            return defaults_of(await self._models.find_derived(model), defaults_of(preset, defaults))
        except StoreError as error:
            raise ApiError(422, "model_not_loadable", str(error), param="model") from None

    @property
    def notifier(self) -> LoopNotifier:
        """Return the notifier for readers of answers. Requires a running event loop."""
        if self._notifier is None:
            self._notifier = LoopNotifier()
        return self._notifier

    async def prepare(self, generation: GenerationRequest, slot: ModelSlot) -> list[Request]:
        """Return the engine's requests without queueing them. Preparation runs off the event loop."""
        with _cancelled_if_closed(slot.model):
            return await run_in_thread(self._prepare, slot.model, self._scaled(generation, slot))

    @asynccontextmanager
    async def _run(
        self, generation: GenerationRequest, admitted: Admitted, slot: ModelSlot
    ) -> AsyncIterator[RunningRequest]:
        llm, account, noted = slot.model, current_account.get(), answer_log.get()
        requests = await self.prepare(generation, slot)
        requests[0].reports_progress = generation.reports_progress
        running = RunningRequest(
            llm.driver, llm.tokenizer, slot.info, requests, self.notifier, admitted.arrived, generation.owner
        )
        running.id_slot = self.slots.assign(generation.id_slot)
        self._log_text(generation, "prompt", running.prompt_text if self._settings.log_prompts else "")
        self._running.add(running)
        watch = None
        try:
            with _cancelled_if_closed(llm):
                running.start()
            watch = start_task(running.watch(seconds)) if (seconds := self._settings.request_timeout) else None
            yield running
        finally:
            if watch is not None:
                watch.cancel()
            self._running.discard(running)
            running.cancel()
            self._finish(generation, running)
            usage = running.usage()
            self.meter.charge(account, running.model.name, usage, n_requests=0 if admitted.is_counted else 1)
            admitted.is_counted = True
            record_answer(noted, model=running.model.name, reasons=running.reasons(), **usage, **running.timings())
            if running.is_file_changed:
                self._models.discard(slot)

    def check_characters(self, llm: LLM, values: Iterable[Any]) -> None:
        """Raise ApiError 400 if the strings in JSON values are too long for any prompt; see prompt_length.py."""
        check_characters(values, self._max_prompt(llm))

    def check_text(self, llm: LLM, text: str) -> None:
        """Raise ApiError 400 if a prompt is too long to be tokenized, including the text of files."""
        check_text(text, self._max_prompt(llm))

    async def count_tokens(self, layout: ChatFormat, slot: ModelSlot) -> int:
        """Return the token count of a layout, counted off the event loop. Raises the errors of `check_text`."""
        self.check_text(slot.model, layout.text)
        return await run_in_thread(slot.model.count_tokens, layout)

    def _max_prompt(self, llm: LLM) -> int:
        """Return the maximum prompt length in tokens."""
        return min(self._settings.max_prompt or llm.ctx, llm.ctx)

    def _finish(self, generation: GenerationRequest, running: RunningRequest) -> None:
        usage, timings = running.usage(), running.timings()
        first = running.requests[0]
        kept = first.context[: max(len(first.prompt), len(first.context) - 1)]  # the last token is not computed yet
        # All cached pages have digests.
        digests, has_source = (
            (None, False) if first.multimodal is None else (first.digests, first.multimodal.n_source > 0)
        )
        name, owner = running.model.name, generation.owner
        self.slots.record(running.id_slot, name, owner, kept, first.salt, digests, has_source=has_source)
        longest = max(len(request.output) for request in running.requests)
        self._stats.count_answer(running.model.name, running.reasons(), usage, timings, running.queue_seconds, longest)
        drafted = [(request.n_drafted, request.n_accepted) for request in running.requests]
        self._stats.count_work(*running.engine_steps, usage, timings, drafted)
        log.log(
            logging.DEBUG if generation.is_part else logging.INFO,
            "answered",
            extra={
                "client": generation.client or None,
                "model": running.model.name,
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["cached_tokens"],
                "cache": running.cache_note(has_text=self._settings.log_prompts) or None,
                "completion_tokens": usage["completion_tokens"],
                "first_token_ms": timings["prompt_ms"],
                "reason": ",".join(running.reasons()),
            },
        )
        if self._settings.log_prompts:
            for request in running.requests:
                self._log_text(generation, "answer", request.text)

    def _log_text(self, generation: GenerationRequest, what: str, text: str) -> None:
        if self._settings.log_prompts:
            log.info(what, extra={"client": generation.client or None, "text": text})

    def cache_salt(self, owner: str) -> bytes:
        """Return the cache salt of a client. Without a salt, cache hits would reveal other clients' prompts."""
        if self._settings.shares_prefixes or not owner:
            return b""
        return hashlib.blake2b(owner.encode(), digest_size=20, person=b"woolly prefixes").digest()

    def _scaled(self, generation: GenerationRequest, slot: ModelSlot) -> GenerationRequest:
        """Return the request with the server's adapter scales unless the request sets scales."""
        layout = generation.prompt if isinstance(generation.prompt, ChatFormat) else None
        params = generation.params if layout is None else layout.params
        if params.adapters is not None or not slot.has_scales:
            return generation
        params = replace(params, adapters=dict(enumerate(self.adapter_scales)))
        prompt = generation.prompt if layout is None else replace(layout, params=params)
        return replace(generation, params=params, prompt=prompt)

    def _prepare(self, llm: LLM, generation: GenerationRequest) -> list[Request]:
        """Tokenize and check the prompt, on a thread because long prompts take time."""
        prompt, most, constraints = generation.prompt, self._max_prompt(llm), generation.token_constraints
        options = {
            "score_only": generation.score_only,
            "salt": self.cache_salt(generation.owner),
            "priority": request_priority.get(),  # context variables of the task are also set in the thread
            "group": fairness_group.get(),
        }
        if not isinstance(prompt, tuple):
            self.check_text(llm, prompt if isinstance(prompt, str) else prompt.text)
        if isinstance(prompt, ChatFormat):
            layout = replace(prompt, params=constraints.bind(prompt.params, llm.tokenizer))
            check_length(f"has {len(generation.context_ids)} tokens", len(generation.context_ids), most)
            requests = llm.prepare_layout(
                layout, generation.context_ids, partial(constraints.cut, most=most), **options
            )
        else:
            if isinstance(prompt, str):
                prompt = tuple(llm.tokenize(prompt))
            ids = tuple(constraints.cut(cast("tuple[int, ...]", prompt), most))  # audio placeholders pass as token ids
            check_length(f"has {len(ids)} tokens", len(ids), most)
            params = constraints.bind(generation.params, llm.tokenizer)
            (requests,) = llm.prepare(ids, params, hooks=generation.hooks, **options)
        check_length(f"has {len(requests[0].prompt)} tokens", len(requests[0].prompt), most)
        return requests


@contextmanager
def _cancelled_if_closed(llm: LLM) -> Iterator[None]:
    """Raise `answer_cancelled` if a RequestError is caused by the unloading of the model."""
    try:
        yield
    except RequestError:
        try:
            _ = llm.engine
        except RequestError:
            raise answer_cancelled() from None
        raise
