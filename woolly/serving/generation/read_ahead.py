"""Prefills the message that a user is typing while the server is idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from woolly.chat import ChatFormat
from woolly.chat.stable_prefix import stable_prefix
from woolly.engine import Engine, Request
from woolly.llm import LLM
from woolly.runtime import PAGE_SIZE, pages_for
from woolly.sampling import SamplingParams
from woolly.serving.accounts.account import current_account
from woolly.serving.generation.generator import GenerationRequest, Generator, request_priority
from woolly.serving.generation.read_ahead_tasks import ReadAheadTask
from woolly.serving.generation.running_request import RunningRequest
from woolly.serving.model_manager.loaded_model import ModelSlot

_LOWEST = -(1 << 30)  # below the priority of batch rows

# Tokens per request to the engine. Preemption loses the unfinished request, but smaller requests are slower. A model
# with recurrent state stores one state per request and has space for few states.
_PIECE, _PIECE_OF_STATES = 4 * PAGE_SIZE, 16 * PAGE_SIZE
_TAIL = 8  # tokens after the last page, which make the scheduler store the state at the page's end


@dataclass(frozen=True)
class SettledPrompt:
    """A prompt whose end may still change."""

    ids: Sequence[int]  # complete prompt
    n_settled: int  # length of the prefix that further typing cannot change
    params: SamplingParams  # sampling parameters of the request


def settled_prompt(llm: LLM, layout: ChatFormat, other: ChatFormat) -> SettledPrompt:
    """Return the prompt of a layout with the length of the prefix that further typing cannot change."""
    ids, first = llm.tokenize_layout(layout), llm.tokenize_layout(stable_prefix(layout, other))
    alike = (a == b for a, b in zip(ids, first, strict=False))
    n_settled = next((i for i, is_alike in enumerate(alike) if not is_alike), min(len(ids), len(first)))
    return SettledPrompt(ids, n_settled, layout.params)


async def read_ahead(generator: Generator, slot: ModelSlot, prompt: SettledPrompt, task: ReadAheadTask) -> None:
    """Prefill the pages of a prompt that further typing cannot change, until the task ends.

    The task counts the tokens.
    """
    llm = slot.model
    if llm.engine.program.plan.has_source:
        return  # an encoder processes the complete prompt, and every output depends on all of it
    request_priority.set(_LOWEST)
    n_pages = prompt.n_settled // PAGE_SIZE
    end = min(prompt.n_settled, n_pages * PAGE_SIZE + _TAIL)
    if not n_pages or task.ended:
        return
    params = SamplingParams(adapters=prompt.params.adapters)
    generation = GenerationRequest(params, tuple(prompt.ids[:end]), slot.info.name, score_only=True, owner=task.owner)
    last = await generator.prepare(generation, slot)
    n_found = await asyncio.to_thread(llm.driver.call, partial(_count_found, last[0], n_pages))
    task.found(n_found * PAGE_SIZE)
    n_before = task.n_cached
    for piece in _ends(llm, n_found, end) if n_found < n_pages else ():
        ids = tuple(prompt.ids[:piece])
        requests = last if piece == end else await generator.prepare(replace(generation, prompt=ids), slot)
        requests[0].is_early = True
        async with generator.read_ahead_tasks.reading:
            if not await asyncio.to_thread(llm.driver.call, partial(_has_room, requests[0])):
                task.end("full")
            if slot.state != "ready":
                task.end("unloaded")
            if not generator.meter.has_left(account := current_account.get()):
                task.end("limit")
            if task.ended:
                return
            # Charge before the computation, so that a client cannot avoid it by disconnecting.
            generator.meter.charge(account, slot.info.name, {"prompt_tokens": piece - n_before}, n_requests=0)
            n_before = piece
            arrived = time.monotonic()
            running = RunningRequest(
                llm.driver, llm.tokenizer, slot.info, requests, generator.notifier, arrived, task.owner
            )
            if await task.run(running):
                task.read(piece // PAGE_SIZE * PAGE_SIZE)


def _count_found(request: Request, n_pages: int, engine: Engine) -> int:
    """Return the number of the prompt's pages that are cached."""
    return len(engine.scheduler.pages.index.find(request.digests_to(n_pages)))


def _has_room(request: Request, engine: Engine) -> bool:
    """Return True if the pages of a request may be prefetched; this evicts at most a quarter of the cache."""
    pages = engine.scheduler.pages
    found = pages.index.find(request.digests_to(request.n_reusable // PAGE_SIZE))
    return pages_for(len(request.context)) - len(found) <= pages.room_ahead(found)


def _ends(llm: LLM, n_found: int, end: int) -> Iterator[int]:
    """Yield the prompt length at which each piece ends."""
    scheduler = llm.engine.scheduler
    has_states = scheduler.snapshots is not None or scheduler.visible_pages.is_bounded
    piece, tail = (_PIECE_OF_STATES, _TAIL) if has_states else (_PIECE, 0)
    yield from range(n_found * PAGE_SIZE + piece + tail, end, piece)
    yield end
