"""POST /predict: several requests in the format of Google's Vertex AI, as in llama-server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from woolly.serving.dialects.completions.bodies import ChatBody
from woolly.serving.dialects.completions.chat import chat_completions
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.router import APIRouter

router = APIRouter()

_FORMAT = "@requestFormat"
_MAX_REQUESTS = 64  # maximum number of requests


class Predictions(BaseModel):
    """Bodies of /chat/completions, which may have different formats."""

    model_config = ConfigDict(extra="forbid")

    instances: Items[dict[str, Any]]
    parameters: dict[str, Any] | None = None


@router.post("/predict")
async def predict(body: Predictions, request: Request) -> dict[str, Any]:
    """Answer all requests; `parameters` are fields shared by them."""
    if not 1 <= len(body.instances) <= _MAX_REQUESTS:
        raise invalid_param("instances", f"expected 1 to {_MAX_REQUESTS} requests, but got {len(body.instances)}")
    bodies = [_read(i, {**(body.parameters or {}), **one}) for i, one in enumerate(body.instances)]
    replies = await asyncio.gather(*(chat_completions(one, request) for one in bodies))
    return {"predictions": [json.loads(bytes(reply.body)) for reply in replies]}


def _read(index: int, fields: dict[str, Any]) -> ChatBody:
    where = f"instances.{index}"
    kind = fields.pop(_FORMAT, "chatCompletions")
    if kind != "chatCompletions":
        raise invalid_param(f"{where}.{_FORMAT}", f"expected 'chatCompletions', but got {str(kind)[:40]!r}")
    if fields.get("stream"):
        raise invalid_param(f"{where}.stream", "/predict cannot be streamed; remove it")
    try:
        return ChatBody.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *map(str, first["loc"])])
        raise invalid_param(place, first["msg"][:1].lower() + first["msg"][1:]) from None
