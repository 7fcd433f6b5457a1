"""Anthropic's Messages API: /v1/messages, token counts and batches."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.anthropic import batches, replies, routes
from woolly.serving.errors import ApiError
from woolly.serving.observability.logs import request_id
from woolly.serving.router import APIRouter
from woolly.serving.sse import named_sse_event

__all__ = ["DIALECT", "Anthropic"]

# Anthropic's error `type` by status; other statuses are invalid_request_error below 500, else api_error.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Anthropic(ChatDialect):
    """Anthropic's Messages API."""

    name = "anthropic"
    prefix = "/v1/messages"
    fields = {  # noqa: RUF012 - a constant of the class
        "continue_final": "messages",
        "reasoning_effort": "output_config.effort",
        "schema": "output_config.format",
        "stop": "stop_sequences",
    }

    def __init__(self) -> None:
        self.router = APIRouter(tags=["Anthropic"])
        for part in (routes, batches):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return Anthropic's error object. Claude Code compacts a chat only if the error has this message."""
        kind = _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        message = error.client_message if error.suggestion is None else f"{error.client_message}; {error.suggestion}"
        if error.code == "context_length_exceeded" and error.exceeds is not None:
            n_tokens, most = error.exceeds
            message = f"prompt is too long: {n_tokens} tokens > {most} maximum"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id.get()}

    def error_frame(self, error: ApiError) -> bytes:
        """Return the error event that ends a stream."""
        return named_sse_event(self.error(error))

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        return replies.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a message."""
        return await replies.full_reply(chunks, head)


DIALECT = Anthropic()
