"""GET /requests: the last requests, for an administrator, with --keep-requests."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.serving.errors import ApiError, feature_disabled
from woolly.serving.observability.request_history import RequestHistory
from woolly.serving.router import APIRouter

router = APIRouter(prefix="/requests")


@router.get("", summary="The last requests, with --keep-requests")
async def list_requests(request: Request) -> dict[str, Any]:
    """List requests, newest first, without their bodies; for administrators."""
    return {"requests": _kept(request).all()}


@router.get("/{id}", summary="One of the last requests, with --keep-requests")
async def show_request(id: str, request: Request) -> dict[str, Any]:
    """Return a request by its x-request-id, with its body; texts are replaced by lengths unless --keep-texts is set."""
    found = _kept(request).get(id)
    if found is None:
        raise ApiError(404, "not_found", f"no request {id[:64]!r} is kept; the header x-request-id of a reply names it")
    return found


def _kept(request: Request) -> RequestHistory:
    if not request.state.is_admin:
        message = "requests of all clients are shown to administrators alone"
        raise ApiError(403, "access_denied", message, suggestion="use an administrator's key")
    history: RequestHistory = request.app.state.request_history
    if not history.is_on:
        raise feature_disabled(f"GET {request.url.path[:60]}", "--keep-requests N")
    return history
