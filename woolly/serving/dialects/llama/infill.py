"""POST /infill: the text between a prefix and a suffix, with the model's FIM tokens."""

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
    """Additional file as context."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filename: str = "tmp"
    text: str


class InfillBody(CompletionBody):
    """The fields of /completion, and the text before and after."""

    prompt: Any = Field(default="", description="Text that the answer begins with, behind the prefix and the suffix.")
    input_prefix: str
    input_suffix: str
    input_extra: Items[Extra] = Field(default_factory=list, description="Further files, in front of all.")


@router.post("/infill", summary="Fill in what is missing in the middle, as llama-server does")
async def infill(body: InfillBody, request: Request) -> Response:
    """Fill in the middle; the reply is as in /completion. A model without FIM tokens is rejected."""
    if not isinstance(body.prompt, str):
        raise ApiError(400, "invalid_request", "prompt is not text", param="prompt")
    extra = [(one.filename, one.text) for one in body.input_extra]
    return await answer(
        body,
        request,
        lambda tokenizer: fill_in(tokenizer, body.input_prefix, body.input_suffix, begin=body.prompt, extra=extra),
    )
