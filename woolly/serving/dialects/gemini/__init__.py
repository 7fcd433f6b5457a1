"""Google's Gemini API: /v1beta/models."""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.gemini import replies, routes
from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Gemini"]

# Google's `status` by HTTP status; others are INVALID_ARGUMENT below 500, else INTERNAL.
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class Gemini(ChatDialect):
    """Google's Gemini API."""

    name = "gemini"
    prefix = "/v1beta"
    pattern = re.compile(r"/v1/models/.+:[A-Za-z]+Contents?|/v1/models/.+:countTokens")
    query_key = "key"
    fields = {  # noqa: RUF012 - a constant of the class
        "prompt": "contents",
        "continue_final": "contents",
        "reasoning_effort": "generationConfig.thinkingConfig",
        "schema": "generationConfig.responseSchema",
        "choice": "generationConfig.responseSchema",
        "stop": "generationConfig.stopSequences",
        "max_tokens": "generationConfig.maxOutputTokens",
        "temperature": "generationConfig.temperature",
        "top_p": "generationConfig.topP",
        "top_k": "generationConfig.topK",
        "n": "generationConfig.candidateCount",
    }

    def __init__(self) -> None:
        self.router = APIRouter(tags=["Gemini"])
        self.router.include_router(routes.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return Google's error object. The message lets agents detect a prompt that is too long."""
        message = error.client_message if error.suggestion is None else f"{error.client_message}; {error.suggestion}"
        if error.code == "context_length_exceeded" and error.exceeds is not None:
            n_tokens, most = error.exceeds
            message = (
                f"The input token count ({n_tokens}) exceeds the maximum number of tokens allowed ({most}). {message}"
            )
        status = _STATUSES.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
        return {"error": {"code": error.status, "message": message, "status": status}}

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events."""
        return replies.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a response."""
        return await replies.full_reply(chunks, head)


DIALECT = Gemini()
