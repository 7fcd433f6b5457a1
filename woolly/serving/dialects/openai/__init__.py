"""OpenAI's API: models, completions, embeddings, transcriptions, files and batches under /v1."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.completions import chat
from woolly.serving.dialects.openai import audio, batches, embeddings, files, models, read_ahead, routes
from woolly.serving.errors import ApiError, error_body
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "OpenAI"]


class OpenAI(ChatDialect):
    """OpenAI API."""

    name = "openai"
    prefix = "/v1"
    fields = chat.FIELDS

    def __init__(self) -> None:
        self.router = APIRouter(tags=["OpenAI"])
        for part in (models, routes, read_ahead, embeddings, audio, files, batches):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return an OpenAI error object."""
        return error_body(error)

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        return chat.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a chat.completion."""
        return await chat.full_reply(chunks, head)


DIALECT = OpenAI()
