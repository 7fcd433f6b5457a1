"""/v1/chat/completions and /v1/completions."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from woolly.serving.dialects.completions.bodies import ChatBody, CompletionBody, OpenAIBody
from woolly.serving.dialects.completions.chat import chat_completions
from woolly.serving.dialects.completions.replies import ChatReply, CompletionReply
from woolly.serving.dialects.completions.text import text_completions
from woolly.serving.errors import invalid_param
from woolly.serving.router import APIRouter

router = APIRouter()


@router.post(
    "/v1/chat/completions", responses={200: {"model": ChatReply}}, response_model=None, summary="Chat Completions"
)
async def answer(body: ChatBody, request: Request) -> Response:
    """Answer a conversation; with `stream`, as server-sent events."""
    _check_bias(body)
    return await chat_completions(body, request)


@router.post(
    "/v1/completions", responses={200: {"model": CompletionReply}}, response_model=None, summary="Text Completions"
)
async def complete(body: CompletionBody, request: Request) -> Response:
    """Complete one prompt or several; with `echo` and `logprobs`, score the prompts."""
    _check_bias(body)
    return await text_completions(body, request)


def _check_bias(body: OpenAIBody) -> None:
    """Reject keys other than token ids in logit_bias, as OpenAI does; llama-server's format is a list of pairs."""
    if not isinstance(body.logit_bias, dict):
        return
    for key in body.logit_bias:
        if not (key.isascii() and key.isdigit()):
            raise invalid_param(
                "logit_bias", f"it has the key {key[:40]!r}; expected a token id, as returned by /tokenize"
            )
