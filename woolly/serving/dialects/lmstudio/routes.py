"""Chat completions, text completions and embeddings under /api/v0."""

from __future__ import annotations

from fastapi import Request
from fastapi.responses import Response

from woolly.serving.dialects.completions.bodies import ChatBody, CompletionBody
from woolly.serving.dialects.completions.chat import chat_completions
from woolly.serving.dialects.completions.replies import ChatReply, CompletionReply
from woolly.serving.dialects.completions.text import complete_texts
from woolly.serving.dialects.embeddings.embeddings import embeddings
from woolly.serving.dialects.embeddings.replies import EmbeddingsReply
from woolly.serving.dialects.lmstudio.statistics import statistics_of
from woolly.serving.router import APIRouter

router = APIRouter()


@router.post(
    "/api/v0/chat/completions",
    responses={200: {"model": ChatReply}},
    response_model=None,
    summary="Chat Completions (LM Studio)",
)
async def answer(body: ChatBody, request: Request) -> Response:
    """Answer a conversation as /v1/chat/completions does; complete replies also have statistics."""
    return await chat_completions(body, request)


@router.post(
    "/api/v0/completions",
    responses={200: {"model": CompletionReply}},
    response_model=None,
    summary="Text Completions (LM Studio)",
)
async def complete(body: CompletionBody, request: Request) -> Response:
    """Complete prompts as /v1/completions does; complete replies also have statistics."""
    return await complete_texts(body, request, statistics_of)


router.post(
    "/api/v0/embeddings",
    responses={200: {"model": EmbeddingsReply}},
    response_model=None,
    summary="Embeddings (LM Studio)",
)(embeddings)
