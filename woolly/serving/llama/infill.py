"""POST /infill: what stands between a prefix and a suffix, by the model's own tokens for it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.errors import ApiError
from woolly.serving.llama.completion import answer
from woolly.serving.llama.parameters import CompletionBody
from woolly.serving.parameters import Items
from woolly.text import Tokenizer

__all__ = ["Extra", "InfillBody", "infill", "lay_out", "router"]

router = APIRouter()

_REPOSITORY = "myproject"  # what llama-server calls it


class Extra(BaseModel):
    """Another file that the model should know."""

    model_config = ConfigDict(extra="forbid", strict=True)

    filename: str = "tmp"
    text: str


class InfillBody(CompletionBody):
    """The fields of /completion, and what stands before and after."""

    prompt: Any = Field(default="", description="Text that the answer begins with, behind the prefix and the suffix.")
    input_prefix: str
    input_suffix: str
    input_extra: Items[Extra] = Field(default_factory=list, description="Further files, in front of all.")


@router.post("/infill", summary="Fill in what is missing in the middle, as llama-server does")
async def infill(body: InfillBody, request: Request) -> Response:
    """The reply is that of /completion. A model without tokens for it is refused."""
    if not isinstance(body.prompt, str):
        raise ApiError(400, "invalid_request", "prompt is no text", param="prompt")
    return await answer(body, request, lambda tokenizer: lay_out(tokenizer, body))


def lay_out(tokenizer: Tokenizer, body: InfillBody) -> list[int]:
    """The tokens of the prompt: other files, prefix, suffix, and the beginning of the middle."""
    special = tokenizer.special
    before, after, middle = special.fim_pre, special.fim_suf, special.fim_mid
    if before is None or after is None or middle is None:
        raise ApiError(400, "not_supported", "this model has no tokens for a prefix, a suffix and what is between them")

    def encode(text: str) -> list[int]:
        # The files are what they are: control tokens that are written out in them mean nothing.
        return tokenizer.encode(text, add_special=False, parse_special=False)

    ids: list[int] = []
    if special.fim_rep is not None and special.fim_sep is not None:
        if body.input_extra:
            ids += [special.fim_rep, *encode(f"{_REPOSITORY}\n")]
        for extra in body.input_extra:
            ids += [special.fim_sep, *encode(f"{extra.filename}\n{extra.text}")]
        if body.input_extra:
            ids += [special.fim_sep, *encode("filename\n")]
    else:
        for extra in body.input_extra:
            ids += encode(extra.text)
    ids += [before, *encode(body.input_prefix), after, *encode(body.input_suffix), middle, *encode(body.prompt)]
    first = tokenizer.bos_id
    return [first, *ids] if tokenizer.add_bos and first is not None else ids
