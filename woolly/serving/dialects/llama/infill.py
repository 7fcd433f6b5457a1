"""POST /infill: fill-in-the-middle between a prefix and a suffix."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.fill_in import fill_in
from woolly.serving.dialects.llama.completion import answer
from woolly.serving.dialects.llama.parameters import CompletionBody
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

router = APIRouter()


class Extra(BaseModel):
    """Additional context file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filename: str = "tmp"
    text: str


class InfillBody(CompletionBody):
    """Body of /completion with the text before and after the gap."""

    prompt: Any = Field(default="", description="Beginning of the answer, after the prefix and suffix.")
    input_prefix: str
    input_suffix: str
    input_extra: Items[Extra] = Field(default_factory=list, description="Additional context files.")


@router.post("/infill", summary="Fill in the middle (llama-server)")
async def infill(body: InfillBody, request: Request) -> Response:
    """Fill in the middle and reply as /completion does. Models without FIM tokens are rejected."""
    if not isinstance(body.prompt, str):
        raise ApiError(400, "invalid_request", "prompt must be a string", param="prompt")
    extra = [(one.filename, one.text) for one in body.input_extra]
    return await answer(
        body,
        request,
        lambda tokenizer: fill_in(tokenizer, body.input_prefix, body.input_suffix, begin=body.prompt, extra=extra),
    )
