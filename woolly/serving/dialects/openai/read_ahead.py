"""POST /v1/chat/completions/read_ahead: Woolly's own, for clients that know a message before it is sent."""

from __future__ import annotations

from typing import Literal

from fastapi import Request
from pydantic import BaseModel, Field

from woolly.chat import ChatRequest
from woolly.chat.media import has_media
from woolly.chat.typed import ended_otherwise
from woolly.errors import RequestError
from woolly.serving.accounts.account import current_account
from woolly.serving.dialects.answer import lay_out_chat
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.chat import FIELDS
from woolly.serving.errors import ApiError, feature_disabled, to_api_error
from woolly.serving.gate.identity import owner_of
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.reading_ahead import read_ahead, settled_prompt
from woolly.serving.generation.reading_turns import ReadingTurn
from woolly.serving.generation.threads import run_held
from woolly.serving.model_manager.loaded_model import LoadedModel
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter
from woolly.serving.settings.checks import reads_ahead

router = APIRouter()


class ReadAheadReply(BaseModel):
    """What was read of a message that is being written."""

    object: Literal["chat.completion.read_ahead"] = "chat.completion.read_ahead"
    model: str
    read_tokens: int = Field(description="Tokens that are in the cache since.")
    cached_tokens: int = Field(description="Tokens before them that were there.")
    state: Literal["read", "busy", "replaced", "unloaded", "media", "full", "limit"] = Field(
        description="read: all that cannot change any more. Others say why it ended early: an answer was wanted or"
        " another message is being laid out, the same client sent a later message, the model is not loaded, the"
        " conversation has images, audio, PDF files or videos, which are never read ahead, the cache has no more"
        " room for text that nobody sent, a limit of the key is reached."
    )


@router.post("/v1/chat/completions/read_ahead", summary="Read Ahead")
async def read_typed(body: ChatBody, request: Request) -> ReadAheadReply:
    """Computes the beginning of a prompt whose last message is still being written; writes no answer.

    It runs while no answer does, and loads no model. What it computes counts as tokens of a key, not as a request.
    """
    state = request.app.state
    generator: Generator = state.generator
    models: ModelManager = state.models
    if not state.settings.read_ahead:
        raise feature_disabled("reading ahead", "--read-ahead")
    if not reads_ahead(state.settings):
        raise ApiError(
            501, "not_supported", "nothing is read ahead behind replicas, each of which has a cache of its own"
        )
    generator.meter.check(current_account.get())
    chat = body.to_chat(await generator.defaults_for(body.model))
    info = await models.resolve(body.model)
    address = "" if request.client is None else request.client.host
    with generator.turns.take(owner_of(request), address) as turn:
        try:
            other = ended_otherwise(chat)
            if has_media(chat.messages):
                turn.end("media")
            if models.ready(info.name) is None:
                turn.end("unloaded")
            if not turn.ended:
                async with models.use(info) as slot:
                    generator.check_characters(slot.model, body.model_dump(include={"messages", "tools"}).values())
                    await _read(generator, slot, body.model, (chat, other), turn)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "messages", **FIELDS}) from error
    ended = turn.ended or "read"
    state.stats.ahead(ended, turn.n_read)
    return ReadAheadReply(model=info.name, read_tokens=turn.n_read, cached_tokens=turn.n_cached, state=ended)


async def _read(
    generator: Generator,
    slot: LoadedModel,
    model: str | None,
    chats: tuple[ChatRequest, ChatRequest],
    turn: ReadingTurn,
) -> None:
    """Lays out both ends of a conversation and reads what they share. Stops between two threads if the turn ended."""
    if generator.turns.layouts.locked():
        turn.end("busy")
    if turn.ended:
        return
    layouts = []
    async with generator.turns.layouts:
        for chat in chats:
            layout = await lay_out_chat(generator, chat, slot, model)
            generator.check_text(slot.model, layout.text)
            if turn.ended:
                return
            layouts.append(layout)
        prompt = await run_held(settled_prompt, slot.model, *layouts)
    await read_ahead(generator, slot, prompt, turn)
