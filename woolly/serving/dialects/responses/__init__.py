"""OpenAI's Responses API: /v1/responses and /v1/conversations."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.responses import conversation_routes, replies, routes
from woolly.serving.errors import ApiError, error_body
from woolly.serving.router import APIRouter
from woolly.serving.sse import named_sse_event

__all__ = ["DIALECT", "Responses"]


class Responses(ChatDialect):
    """OpenAI's Responses API."""

    name = "responses"
    prefix = "/v1/responses"
    aliases = ("/responses", "/v1/conversations", "/conversations")
    fields = {  # noqa: RUF012 - a constant of the class
        "continue_final": "input",
        "max_tokens": "max_output_tokens",
        "prompt": "input",
        "reasoning_effort": "reasoning.effort",
        "schema": "text.format",
    }

    def __init__(self) -> None:
        self.router = APIRouter(tags=["OpenAI responses"])
        for part in (routes, conversation_routes):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return OpenAI's error object. Codex detects a busy server by this code."""
        body = error_body(error)
        if error.status == 503:
            body["error"]["code"] = "server_is_overloaded"
        return body

    def error_frame(self, error: ApiError) -> bytes:
        """Return the error event of a stream that fails before its response begins."""
        told = self.error(error)["error"]
        return named_sse_event(
            {"type": "error", **{name: told[name] for name in ("code", "message", "param")}, "sequence_number": 0}
        )

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        return replies.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a response."""
        return await replies.full_reply(chunks, head)


DIALECT = Responses()
