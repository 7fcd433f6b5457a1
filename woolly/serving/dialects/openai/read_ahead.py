"""POST /v1/chat/completions/read_ahead: prefill of a message while the user types (Woolly only)."""

from __future__ import annotations

from typing import Literal

from fastapi import Request
from pydantic import BaseModel, Field

from woolly.chat import ChatRequest
from woolly.chat.media import has_media
from woolly.chat.stable_prefix import with_other_ending
from woolly.errors import RequestError
from woolly.serving.accounts.account import current_account
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.chat import FIELDS
from woolly.serving.errors import ApiError, feature_disabled, to_api_error
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.read_ahead import read_ahead, settled_prompt
from woolly.serving.generation.read_ahead_tasks import ReadAheadTask
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.settings.checks import reads_ahead

router = APIRouter()


class ReadAheadReply(BaseModel):
    """Result of a read-ahead."""

    object: Literal["chat.completion.read_ahead"] = "chat.completion.read_ahead"
    model: str
    read_tokens: int = Field(description="Tokens computed and added to the cache.")
    cached_tokens: int = Field(description="Tokens that were in the cache before.")
    state: Literal["read", "busy", "replaced", "unloaded", "media", "full", "limit"] = Field(
        description="read: the stable prefix was computed. Reasons for an early end: busy (an answer or another layout"
        " runs), replaced (a later message of the same client), unloaded (the model is not loaded), media (images,"
        " audio, PDF files and videos are never read ahead), full (no room in the cache for unsent text), limit (a"
        " limit of the API key)."
    )


@router.post("/v1/chat/completions/read_ahead", summary="Read Ahead")
async def read_typed(body: ChatBody, request: Request) -> ReadAheadReply:
    """Prefill the prompt of a message that the user is still typing; generate no answer.

    The prefill runs only while no answer is running, and never loads a model. The tokens count toward the limits of the
    API key, but the call does not count as a request.
    """
    state = request.app.state
    generator: Generator = state.generator
    models: ModelManager = state.models
    if not state.settings.read_ahead:
        raise feature_disabled("reading ahead", "--read-ahead")
    if not reads_ahead(state.settings):
        raise ApiError(501, "not_supported", "read-ahead is not supported with replicas, which have separate caches")
    generator.meter.check(current_account.get())
    chat = body.to_chat(await generator.defaults_for(body.model))
    info = await models.resolve(body.model)
    address = "" if request.client is None else request.client.host
    with generator.read_ahead_tasks.take(owner_of(request), address) as task:
        try:
            other = with_other_ending(chat)
            if has_media(chat.messages):
                task.end("media")
            if models.ready(info.name) is None:
                task.end("unloaded")
            if not task.ended:
                async with models.use(info) as slot:
                    generator.check_characters(slot.model, body.model_dump(include={"messages", "tools"}).values())
                    await _read(generator, slot, body.model, (chat, other), task)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "messages", **FIELDS}) from error
    ended = task.ended or "read"
    state.stats.count_read_ahead(ended, task.n_read)
    return ReadAheadReply(model=info.name, read_tokens=task.n_read, cached_tokens=task.n_cached, state=ended)


async def _read(
    generator: Generator,
    slot: ModelSlot,
    model: str | None,
    chats: tuple[ChatRequest, ChatRequest],
    task: ReadAheadTask,
) -> None:
    """Lay out the conversation with two endings and prefill their common prefix; stop if the task has ended."""
    if generator.read_ahead_tasks.layouts.locked():
        task.end("busy")
    if task.ended:
        return
    layouts = []
    async with generator.read_ahead_tasks.layouts:
        for chat in chats:
            layout = await generator.format_chat(chat, slot, model)
            generator.check_text(slot.model, layout.text)
            if task.ended:
                return
            layouts.append(layout)
        prompt = await run_in_thread(settled_prompt, slot.model, *layouts)
    await read_ahead(generator, slot, prompt, task)
