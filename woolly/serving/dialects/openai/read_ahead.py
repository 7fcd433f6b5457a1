"""POST /v1/chat/completions/read_ahead: Woolly's own, for clients that know a message before it is sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fastapi import Request
from pydantic import BaseModel, Field

from woolly.chat import ChatRequest, Layout
from woolly.chat.sight import Readings
from woolly.chat.typed import ended_otherwise, settled
from woolly.errors import RequestError
from woolly.serving.accounts.account import asking
from woolly.serving.answers.generation import Generator
from woolly.serving.answers.reading_ahead import read_ahead
from woolly.serving.answers.threads import run_held
from woolly.serving.dialects.answer import lay_out_chat
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.chat import FIELDS
from woolly.serving.errors import of_exception, switched_off
from woolly.serving.gate.identity import owner_of
from woolly.serving.loading.loaded import Loaded
from woolly.serving.loading.manager import ModelManager
from woolly.serving.router import APIRouter

__all__ = ["ReadAheadReply", "read_typed", "router"]

router = APIRouter()


class ReadAheadReply(BaseModel):
    """What was read of a message that is being written."""

    object: Literal["chat.completion.read_ahead"] = "chat.completion.read_ahead"
    model: str
    read_tokens: int = Field(description="Tokens that are in the cache since.")
    cached_tokens: int = Field(description="Tokens before them that were there.")
    state: Literal["read", "busy", "replaced", "unloaded"] = Field(
        description="read: all that cannot change any more. Others say why it ended early: an answer was wanted, the"
        " same client sent a later message, the model is not loaded."
    )


@router.post("/v1/chat/completions/read_ahead", summary="Read Ahead")
async def read_typed(body: ChatBody, request: Request) -> ReadAheadReply:
    """Computes the beginning of a prompt whose last message is still being written; writes no answer.

    It runs while no answer does, and counts neither as a request nor as tokens of a key. It loads no model.
    """
    state = request.app.state
    generator: Generator = state.generator
    models: ModelManager = state.models
    if not state.settings.read_ahead:
        raise switched_off("reading ahead", "--read-ahead")
    generator.meter.check(asking.get())
    chat = body.to_chat(await generator.defaults_for(body.model))
    info = await models.answering(body.model)
    address = "" if request.client is None else request.client.host
    with generator.turns.take(owner_of(request), address) as turn:
        try:
            other = ended_otherwise(chat)
            if models.ready(info.name) is None:
                turn.end("unloaded")
            if not turn.ended:
                async with models.use(info) as slot:
                    generator.check_characters(slot.model, body.model_dump(include={"messages", "tools"}).values())
                    whole, part = await _lay_out(generator, slot, body.model, chat, other)
                    await read_ahead(generator, slot, part, whole, turn)
        except RequestError as error:
            raise of_exception(error, {"prompt": "messages", **FIELDS}) from error
    return ReadAheadReply(
        model=info.name, read_tokens=turn.n_read, cached_tokens=turn.n_cached, state=turn.ended or "read"
    )


async def _lay_out(
    generator: Generator, slot: Loaded, model: str | None, chat: ChatRequest, other: ChatRequest
) -> tuple[Layout, Layout]:
    """Returns the layout of a conversation, and its beginning that the other one has, too."""
    readings = Readings()  # pictures are decoded once
    async with generator.texts:
        whole = await lay_out_chat(generator, replace(chat, readings=readings), slot, model)
        ended = await lay_out_chat(generator, replace(other, readings=readings), slot, model)
    return whole, await run_held(settled, whole, ended)
