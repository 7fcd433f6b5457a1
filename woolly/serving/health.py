"""Health: whether the server lives, and whether it can answer. Told truthfully while it loads and while it stops."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request, Response

from woolly import __version__

__all__ = ["Health", "health", "live", "ole_health", "ready", "router"]

router = APIRouter(tags=["health"])


class Health:
    """Loading, ready, draining, or failed; set by the server's life, read by the routes."""

    def __init__(self) -> None:
        self.state = "loading"
        self.reason = "models are being loaded"
        self.started = time.monotonic()

    def set(self, state: str, reason: str = "") -> None:
        """The state from here on, and what to tell of it."""
        self.state = state
        self.reason = reason

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self.state == "ready"


def _head(status: str) -> dict[str, Any]:
    stamp = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"status": status, "service": "woolly-server", "version": __version__, "timestamp": stamp}


@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
async def health(request: Request, response: Response) -> dict[str, Any]:
    """llama-server's: 200 where requests are answered, 503 otherwise."""
    state: Health = request.app.state.health
    if state.is_ready:
        return _head("ok")
    response.status_code = 503
    error = {"code": 503, "message": state.reason, "type": "unavailable_error"}
    return {**_head(state.state), "error": error}


@router.get("/api/v1/health")
async def ole_health(request: Request) -> dict[str, Any]:
    """Ole's: always 200; the status says ok, loading, draining or failed."""
    state: Health = request.app.state.health
    return _head("ok" if state.is_ready else state.state)


@router.get("/health/ready")
@router.get("/api/v1/health/ready")
async def ready(request: Request, response: Response) -> dict[str, Any]:
    """Whether requests are taken, with what was looked at; 503 where not.

    No key is asked for here, so that where keys are set, neither names nor numbers are told.
    """
    state: Health = request.app.state.health
    models = request.app.state.models.all_loaded
    admission = request.app.state.generator.admission
    has_room = admission.n_open < admission.n_most
    if request.app.state.authority.is_open:
        loaded = ", ".join(f"{slot.info.name} {slot.state}" for slot in models)
        places = f"{admission.n_open} of {admission.n_most} places are taken"
    else:
        loaded = "loaded" if models else ""
        places = "there is room" if has_room else "all places are taken"
    if not state.is_ready:
        response.status_code = 503
    return {
        **_head("ready" if state.is_ready else "not_ready"),
        "checks": {
            "server": {"status": "ok" if state.is_ready else "error", "message": state.reason or "serving"},
            "models": {"status": "ok", "message": loaded or "none is loaded; one is at the first request"},
            "queue": {
                "status": "ok" if has_room else "error",
                "message": places,
            },
        },
    }


@router.get("/health/live")
@router.get("/api/v1/health/live")
async def live(request: Request) -> dict[str, Any]:
    """That the process answers at all."""
    state: Health = request.app.state.health
    return {**_head("alive"), "uptime_seconds": round(time.monotonic() - state.started, 3)}
