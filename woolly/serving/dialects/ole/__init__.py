"""Ole's API and routes of the original Woolly, below /api/v1."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.completions import chat
from woolly.serving.dialects.ole import (
    auth,
    catalogue,
    inference,
    models,
    performance,
    requests,
    sessions,
    usage,
    websocket,
)
from woolly.serving.dialects.ole.engine_stats import Bandwidth
from woolly.serving.dialects.ole.store import SessionStore
from woolly.serving.errors import ApiError
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Ole"]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep the sessions file open while the app runs."""
    settings = app.state.settings
    app.state.sessions = SessionStore(
        settings.sessions_path, max_sessions=settings.max_sessions, max_bytes=settings.max_session_bytes
    )
    app.state.busy_sessions = set()
    app.state.bandwidth = Bandwidth()
    app.state.looks = {}  # by model; concurrent requests share one query of the engine
    app.state.benchmarking = asyncio.Lock()
    try:
        yield
    finally:
        app.state.sessions.close()


class Ole(ChatDialect):
    """Ole's API: OpenAI's completions, stored sessions, and Ole's error format."""

    name = "ole"
    prefix = "/api/v1"
    takes_any_type = True
    health = {  # noqa: RUF012 - a constant of the class
        "/api/v1/health": "status",
        "/api/v1/health/ready": "ready",
        "/api/v1/health/live": "live",
    }
    metrics = ("/api/v1/metrics",)
    polled = ("/api/v1/performance/stats",)
    tokens = ("/api/v1/auth/token", "/api/v1/auth/validate")
    fields = chat.FIELDS

    def __init__(self) -> None:
        self.router = APIRouter(prefix=self.prefix, tags=["ole"], lifespan=_lifespan)
        for part in (auth, catalogue, models, inference, performance, sessions, usage, requests, websocket):
            self.router.include_router(part.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return Ole's error object."""
        told = {
            "code": error.code,
            "message": error.client_message,
            "suggestion": error.suggestion,
            "details": error.details,
        }
        return {"error": told}

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield server-sent events in OpenAI's format; websocket.py formats the messages of a socket."""
        return chat.frames(chunks, head)

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return a chat.completion."""
        return await chat.full_reply(chunks, head)


DIALECT = Ole()
