"""LM Studio's REST API: models, completions and embeddings under /api/v0."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.completions import chat
from woolly.serving.dialects.lmstudio import models, routes
from woolly.serving.dialects.lmstudio.statistics import statistics_of
from woolly.serving.errors import ApiError, error_body
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "LMStudio"]


class LMStudio(ChatDialect):
    """LM Studio's REST API v0: OpenAI's bodies, and statistics in the replies."""

    name = "lmstudio"
    prefix = "/api/v0"
    fields = chat.FIELDS

    def __init__(self) -> None:
        self.router = APIRouter(tags=["LM Studio"])
        for part in (models, routes):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return an OpenAI error object."""
        return error_body(error)

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events in OpenAI's format."""
        return chat.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a chat.completion with statistics."""
        reply = await chat.full_reply(chunks, head)
        return {**reply, **statistics_of(head.running, reply["choices"][0]["finish_reason"])}


DIALECT = LMStudio()
