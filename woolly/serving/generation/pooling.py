"""Runs embedding, reranking and classification requests, and waits for them off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection

from woolly.engine.pooling import PoolingJob
from woolly.engine.pooling.wait import wait_for_pooling
from woolly.errors import ModelError, RequestError
from woolly.llm import LLM
from woolly.llm.pooling import given_up
from woolly.serving.accounts.account import current_account
from woolly.serving.errors import ApiError, answer_cancelled, model_changed, to_api_error
from woolly.serving.gate.request_id import client_of
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.thread_pool import run_in_thread, start_task
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.model_info import Capability, ModelInfo
from woolly.serving.observability.logs import log
from woolly.store import Purpose, models_for

_VERBS: dict[Capability, tuple[str, Purpose]] = {
    "completion": ("write", "chat"),
    "embedding": ("embed texts", "embed"),
    "token_embedding": ("embed tokens", "embed"),
    "rerank": ("rank documents", "rerank"),
    "classify": ("classify texts", "rerank"),
}


@dataclass(frozen=True)
class PoolingResult:
    """Results for the texts, and data for the reply."""

    result: Any  # return value of `finish`
    model: ModelInfo
    n_tokens: int
    cut: tuple[int, ...]  # indices of truncated texts
    load_seconds: float
    seconds: float  # seconds since the request arrived

    @property
    def headers(self) -> dict[str, str]:
        """Return a header with the indices of truncated texts, if there are any."""
        return {"x-woolly-truncated": ",".join(map(str, self.cut))[:1000]} if self.cut else {}


async def run_pooling(
    connection: HTTPConnection,
    model: str | None,
    can: Sequence[Capability],
    prepare: Callable[[LLM], PoolingJob],
    finish: Callable[[LLM, PoolingJob], Any],
    *,
    field: str,
) -> PoolingResult:
    """Run texts through a model with one of the capabilities `can`; `field` is the body field of the texts.

    `prepare` and `finish` run on a thread. Raises ApiError 400, with the names of suitable models, if the model lacks
    the capabilities.
    """
    state = connection.app.state
    generator: Generator = state.generator
    models: ModelManager = state.models
    if "embedding" in can and state.settings.pooling is not None:
        can = (*can, "completion")  # with --pooling, text-generation models also compute embeddings
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit())
        info = await _find(models, model, can)
        slot = await stack.enter_async_context(models.use(info))
        loaded = time.monotonic()
        llm = slot.model
        try:
            gone = threading.Event()
            given_up.set(gone.is_set)
            job = await run_in_thread(prepare, llm, on_cancel=gone.set)
            await _wait(llm, job, state.settings.request_timeout)
            result = await run_in_thread(finish, llm, job)
        except RequestError as error:
            if llm.is_closed:
                raise answer_cancelled() from None
            raise to_api_error(error, {"prompt": field}) from error
        except ModelError as error:
            if error.code != "file_changed":
                raise
            models.discard(slot)
            raise model_changed() from error
        seconds = time.monotonic() - admitted.arrived
        generator.meter.charge(current_account.get(), info.name, {"prompt_tokens": job.n_tokens})
        state.stats.count_pooling(len(job.texts), job.n_tokens, job.n_batches, seconds)
        log.info(
            "read",
            extra={
                "client": client_of(connection) or None,
                "model": info.name,
                "texts": len(job.texts),
                "prompt_tokens": job.n_tokens,
                "seconds": seconds,
            },
        )
        cut = tuple(index for index, n in enumerate(job.n_cut) if n)
        return PoolingResult(result, slot.info, job.n_tokens, cut, loaded - admitted.arrived, seconds)


async def _find(models: ModelManager, name: str | None, can: Sequence[Capability]) -> ModelInfo:
    """Return the model with this name. Raises ApiError if the model has none of the capabilities."""
    for one in can[:-1]:
        with suppress(ApiError):
            if one in (info := await models.resolve(name, one)).capabilities:
                return info
    try:
        info = await models.resolve(name, can[-1])
    except ApiError as error:
        if error.code != "model_not_found" or name is None:
            raise
        raise await _no_such_model(models, name, can) from None
    if not set(can) & set(info.capabilities):
        raise await _wrong_model(models, info, can)
    return info


async def _wait(llm: LLM, job: PoolingJob, seconds: float) -> None:
    """Wait for a job. Raises ApiError 504 if no batch finishes for `seconds`, including time in the queue."""
    waiting = start_task(wait_for_pooling(llm.driver, job))
    try:
        before, since = job.n_batches, time.monotonic()
        while not (await asyncio.wait([waiting], timeout=seconds / 8 or None))[0]:
            if (now := job.n_batches) != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= seconds:
                message = "no progress within --request-timeout; try again later"
                raise ApiError(504, "request_timeout", message)
        await waiting
    finally:
        if waiting.cancel():  # the task then cancels the job
            await asyncio.wait([waiting])


async def _no_such_model(models: ModelManager, name: str, can: Sequence[Capability]) -> ApiError:
    """Return the error for an unknown name, such as a cloud model's. No chat model can replace it."""
    verb, purpose = _VERBS[can[0]]
    able = [one.name for one in await models.list() if set(can) & set(one.capabilities)]
    if able:
        message, remedy = f"unknown model {name[:200]!r}", f"models that can {verb}: {', '.join(able)}"
    else:
        known = models_for(purpose)[0]
        message, remedy = f"no installed model can {verb}", f"run `woolly pull {known}`, then request {known}"
    return ApiError(404, "model_not_found", message, param="model", suggestion=remedy)


async def _wrong_model(models: ModelManager, info: ModelInfo, can: Sequence[Capability]) -> ApiError:
    """Return the error for a model without the capability."""
    verb, purpose = _VERBS[can[0]]
    others = [one.name for one in await models.list() if set(can) & set(one.capabilities)]
    names = ", ".join(others[:4])
    remedy = f"use {names}" if others else f"run `woolly pull {models_for(purpose)[0]}` on the server"
    why = info.unsupported or "wrong model type"
    return ApiError(400, "wrong_model", f"{info.name} cannot {verb}: {why}", param="model", suggestion=remedy)
