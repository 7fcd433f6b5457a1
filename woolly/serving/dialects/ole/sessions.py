"""GET and POST /sessions, GET and DELETE /sessions/{id}: stored chats."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from woolly.serving.dialects.ole.client import wrapped
from woolly.serving.dialects.ole.store import Session, SessionStore
from woolly.serving.gate.request_id import owner_of
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter(prefix="/sessions")


class SessionBody(BaseModel):
    """New session."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model_name: str | None = Field(default=None, description="Initial model.")
    system_prompt: str | None = Field(default=None, description="System prompt, stored as the first message.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Arbitrary data of the client.")


@router.get("", summary="List the sessions")
async def list_sessions(request: Request) -> Any:
    """List the client's sessions, last used first."""
    store: SessionStore = request.app.state.sessions
    sessions = await store.ask(store.all, owner_of(request))
    return wrapped(request, [_shape(session) for session in sessions])


@router.post("", summary="Create a session", status_code=201)
async def create_session(request: Request, body: SessionBody | None = None) -> dict[str, Any]:
    """Create a session, and reply when it is on disk."""
    models: ModelManager = request.app.state.models
    store: SessionStore = request.app.state.sessions
    body = body or SessionBody()
    info = await models.get(body.model_name)
    first = [] if body.system_prompt is None else [{"role": "system", "content": body.system_prompt}]
    session = await store.ask(
        store.create,
        owner_of(request),
        model_name=info.name,
        max_context_length=info.context_length,
        metadata=body.metadata,
        messages=first,
    )
    return {"session_id": session.id, "message": "the session is stored", "session_info": _shape(session)}


@router.get("/{session_id}", summary="Show a session")
async def get_session(session_id: str, request: Request) -> dict[str, Any]:
    """Return a session with its messages."""
    store: SessionStore = request.app.state.sessions
    owner = owner_of(request)
    session = await store.ask(store.get, owner, session_id)
    return {**_shape(session), "messages": await store.ask(store.messages, owner, session_id)}


@router.delete("/{session_id}", summary="Delete a session")
async def delete_session(session_id: str, request: Request) -> dict[str, Any]:
    """Delete a session and its messages."""
    store: SessionStore = request.app.state.sessions
    await store.ask(store.delete, owner_of(request), session_id)
    return {"success": True, "message": "the session is deleted"}


def _shape(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "created_at": timestamp(session.created_at),
        "last_accessed": timestamp(session.last_accessed),
        "message_count": session.message_count,
        "context_length": session.context_length,
        "max_context_length": session.max_context_length,
        "model_name": session.model_name,
        "active": session.active,
        "metadata": dict(session.metadata),
    }


def timestamp(seconds: float) -> str:
    """Format a time as RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
