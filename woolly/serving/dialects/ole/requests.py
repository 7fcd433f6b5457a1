"""GET /requests: recent requests for administrators (--keep-requests)."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.serving.errors import ApiError, feature_disabled
from woolly.serving.observability.request_history import RequestHistory
from woolly.serving.router import APIRouter

router = APIRouter(prefix="/requests")


@router.get("", summary="List recent requests (needs --keep-requests)")
async def list_requests(request: Request) -> dict[str, Any]:
    """List recent requests without bodies, newest first. Needs an admin key."""
    return {"requests": _kept(request).all()}


@router.get("/{id}", summary="Show a recent request (needs --keep-requests)")
async def show_request(id: str, request: Request) -> dict[str, Any]:
    """Return a request with its body by its x-request-id. Texts are replaced by lengths without --keep-texts."""
    found = _kept(request).get(id)
    if found is None:
        raise ApiError(404, "not_found", f"unknown request {id[:64]!r}; use the x-request-id header of a recent reply")
    return found


def _kept(request: Request) -> RequestHistory:
    if not request.state.is_admin:
        message = "only administrators may list requests"
        raise ApiError(403, "access_denied", message, suggestion="use an admin key")
    history: RequestHistory = request.app.state.request_history
    if not history.is_on:
        raise feature_disabled(f"GET {request.url.path[:60]}", "--keep-requests N")
    return history
