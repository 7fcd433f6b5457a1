"""GET /models/sse: events of models that are loaded and unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from fastapi import Request
from fastapi.responses import Response

from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.llama.models import STATUS, model_id
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.resolver import is_allowed
from woolly.serving.observability.health import Health
from woolly.serving.router import APIRouter
from woolly.serving.sse import EventStreamResponse, sse_event

router = APIRouter()

_SECONDS = 0.1  # between reads of the states, because the start of loading has no notification


@router.get("/models/sse", response_class=Response)
async def stream_events(request: Request) -> Response:
    """Stream a model_status event when a model is loading, loaded or unloaded, until the server stops."""
    events = model_events(request.app.state.models, request.app.state.health)
    return EventStreamResponse(with_heartbeats(events, lambda: b":\n\n"), AsyncExitStack(), "text/event-stream")


async def model_events(models: ModelManager, health: Health) -> AsyncIterator[bytes]:
    """Yield the events of the models that the key may use."""
    known = _states(models)
    while health.state != "draining":
        await asyncio.sleep(_SECONDS)
        states = _states(models)
        for name in {**known, **states}:
            status = states.get(name, "unloaded")
            if status != known.get(name):
                yield sse_event({"model": name, "event": "model_status", "data": {"status": status}})
        known = states


def _states(models: ModelManager) -> dict[str, str]:
    return {model_id(slot.info): STATUS[slot.state] for slot in models.loaded_models if is_allowed(slot.info)}
