"""GET and DELETE /v1/stream, POST /v1/streams/lookup: streams that survive a disconnect."""

from __future__ import annotations

from typing import Any

from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict

from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.gate.request_id import owner_of
from woolly.serving.generation.resumable_streams import ResumableStreams
from woolly.serving.router import APIRouter

router = APIRouter()


class Conversations(BaseModel):
    """Names of chats."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation_ids: Items[str]


@router.get("/v1/stream", response_class=Response)
async def read_stream(request: Request, conv_id: str, start: int = Query(0, ge=0, alias="from")) -> Response:
    """Read the stream of a chat requested with X-Conversation-Id, from a byte offset to its end."""
    streams: ResumableStreams = request.app.state.streams
    stream = streams.find(conv_id, owner_of(request))
    if start < stream.n_lost:
        raise invalid_param("from", f"the first {stream.n_lost} bytes of the stream are no longer available")
    if start > stream.n_bytes:
        raise invalid_param(
            "from", f"expected at most {stream.n_bytes}, the current length of the stream, but got {start}"
        )
    return StreamingResponse(stream.read(start), media_type="text/event-stream")


@router.delete("/v1/stream", status_code=204, response_class=Response)
async def stop_stream(request: Request, conv_id: str) -> Response:
    """Cancel and remove the stream of a chat; does nothing if there is none."""
    streams: ResumableStreams = request.app.state.streams
    streams.drop(conv_id, owner_of(request))
    return Response(status_code=204)


@router.post("/v1/streams/lookup")
async def look_up(body: Conversations, request: Request) -> list[dict[str, Any]]:
    """Return the chats that have a resumable stream."""
    streams: ResumableStreams = request.app.state.streams
    return [
        {
            "conversation_id": stream.name,
            "is_done": stream.ended is not None,
            "total_bytes": stream.n_bytes,
            "started_at": int(stream.started),
            "completed_at": int(stream.ended or 0),
        }
        for stream in streams.matching(body.conversation_ids, owner_of(request))
    ]
