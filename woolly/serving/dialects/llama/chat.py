"""POST /chat/completions without /v1: llama-server's chat, token count and control routes."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.errors import RequestError
from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.chat import FIELDS, chat_completions
from woolly.serving.dialects.completions.replies import ChatReply
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter()
router.post("/chat/completions", responses={200: {"model": ChatReply}}, response_model=None)(chat_completions)


class Control(BaseModel):
    """Command for a running answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(description="Id of the reply, from its stream.")
    action: Literal["reasoning_end"] = Field("reasoning_end", description="End the current reasoning.")


@router.post("/chat/completions/control")
@router.post("/v1/chat/completions/control")
async def control(body: Control, request: Request) -> dict[str, Any]:
    """End the reasoning of a streamed answer; `success` is true if the answer was reasoning."""
    generator: Generator = request.app.state.generator
    owner = owner_of(request)
    for running in generator.running:
        if running.reply_id == body.id and running.owner == owner:
            try:
                return {"id": body.id, "success": await running.end_reasoning()}
            except RequestError as error:
                raise to_api_error(error, {}) from error
    raise ApiError(404, "not_found", f"no running answer has the id {body.id[:80]!r}", param="id")


@router.post("/chat/completions/input_tokens")
@router.post("/v1/chat/completions/input_tokens")
async def count_input(body: ChatBody, request: Request) -> dict[str, Any]:
    """Count the tokens of a rendered chat without running the model."""
    models: ModelManager = request.app.state.models
    generator: Generator = request.app.state.generator
    chat = body.to_chat(await generator.defaults_for(body.model))
    async with models.use(body.model) as slot, generator.texts:
        generator.check_characters(slot.model, body.model_dump(include={"messages", "tools"}).values())
        try:
            layout = await generator.format_chat(chat, slot, body.model)
        except RequestError as error:
            raise to_api_error(error, {"prompt": "messages", **FIELDS}) from error
        n_tokens = await generator.count_tokens(layout, slot)
    return {"object": "response.input_tokens", "input_tokens": n_tokens}
