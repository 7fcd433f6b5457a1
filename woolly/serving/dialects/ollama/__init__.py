"""Ollama's API: /api/chat, /api/generate and the routes for models."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.ollama import chat, derived, embed, models, pull, replies, unsupported
from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Ollama"]


class Ollama(ChatDialect):
    """Ollama's API."""

    name = "ollama"
    prefix = "/api"
    takes_any_type = True
    media_type = "application/x-ndjson"
    fields = {"schema": "format", "reasoning_effort": "think", "max_tokens": "options.num_predict"}  # noqa: RUF012

    def __init__(self) -> None:
        self.router = APIRouter(tags=["Ollama"])
        for part in (chat, derived, embed, models, pull, unsupported):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return Ollama's error, which is a string.

        The first words of the message let agents detect a prompt that is too long.
        """
        message = error.client_message if error.suggestion is None else f"{error.client_message}; {error.suggestion}"
        if error.code == "context_length_exceeded":
            message = f"input length exceeds the context length: {message}"
        return {"error": message}

    def error_frame(self, error: ApiError) -> bytes:
        """Return the last line of a failed stream."""
        return replies.line(dict(self.error(error)))

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield JSON lines."""
        return replies.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a single JSON object."""
        return await replies.full_reply(chunks, head)


DIALECT = Ollama()
