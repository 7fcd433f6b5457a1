"""Liveness and readiness of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timezone
from typing import Any

from fastapi import Request, Response

from woolly import __version__
from woolly.serving.dialect import Dialect
from woolly.serving.router import APIRouter


class Health:
    """State of the server: loading, ready, draining or failed."""

    def __init__(self) -> None:
        self.state = "loading"
        self.reason = "models are being loaded"
        self.started = time.monotonic()
        self.find_fault: Callable[[], str | None] = lambda: None  # reason why a ready server cannot serve
        self.details: Callable[[], dict[str, Any]] = dict  # additional fields of /health on servers without keys

    def set(self, state: str, reason: str = "") -> None:
        """Set the state and the reason shown to clients."""
        self.state = state
        self.reason = reason

    @property
    def is_ready(self) -> bool:
        """True if the server accepts requests."""
        return self.state == "ready"

    @property
    def fault(self) -> str | None:
        """Reason why the server cannot serve, or None if it can."""
        return self.find_fault() if self.is_ready else self.reason

    @property
    def shown(self) -> str:
        """State for clients; failed if a device has failed."""
        return "failed" if self.is_ready and self.fault is not None else self.state


def _head(status: str) -> dict[str, Any]:
    stamp = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"status": status, "service": "woolly-server", "version": __version__, "timestamp": stamp}


async def health(request: Request, response: Response) -> dict[str, Any]:
    """Return 200 if the server accepts requests, else 503."""
    state: Health = request.app.state.health
    fault = state.fault
    details = state.details() if request.app.state.authenticator.is_open else {}
    if fault is None:
        return {**_head("ok"), **_identities(request), **_devices(request), **details}
    response.status_code = 503
    error = {"code": 503, "message": _reason_for_clients(request, fault), "type": "unavailable_error"}
    return {**_head(state.shown), "error": error, **details}


def _reason_for_clients(request: Request, fault: str) -> str:
    """Return the reason why the server cannot serve, without model names if the server has keys."""
    state: Health = request.app.state.health
    is_shown = request.app.state.authenticator.is_open or not state.is_ready
    return fault if is_shown else "a device has failed; see the server's log"


def _identities(request: Request) -> dict[str, Any]:
    """Return the known output fingerprints of loaded models by name; empty if the server has keys."""
    if not request.app.state.authenticator.is_open:
        return {}
    loaded = {slot.info.name: slot.llm for slot in request.app.state.models.loaded_models}
    known = {name: llm.known_identity for name, llm in loaded.items() if llm is not None}
    found = {name: identity.id for name, identity in known.items() if identity is not None}
    return {"identity": found} if found else {}


def _devices(request: Request) -> dict[str, Any]:
    """Return the device of each loaded model by name; empty if the server has keys."""
    if not request.app.state.authenticator.is_open:
        return {}
    loaded = {slot.info.name: slot.llm for slot in request.app.state.models.loaded_models if slot.state == "ready"}
    found = {name: llm.place for name, llm in loaded.items() if llm is not None and not llm.is_closed}
    return {"device": found} if found else {}


async def status(request: Request) -> dict[str, Any]:
    """Return 200 with the status ok, loading, draining or failed."""
    state: Health = request.app.state.health
    return _head("ok" if state.shown == "ready" else state.shown)


async def ready(request: Request, response: Response) -> dict[str, Any]:
    """Return 200 if the server accepts requests, else 503, with the result of each check.

    The route needs no key, so it shows no names and numbers if the server has keys.
    """
    state: Health = request.app.state.health
    models = request.app.state.models.loaded_models
    admission = request.app.state.generator.admission
    has_room = admission.n_open < admission.max_open
    if request.app.state.authenticator.is_open:
        loaded = ", ".join(f"{slot.info.name} {slot.state}" for slot in models)
        places = f"{admission.n_open} of {admission.max_open} places are in use"
    else:
        loaded = "loaded" if models else ""
        places = "available" if has_room else "full"
    is_ready, fault = state.shown == "ready", state.fault
    if not is_ready:
        response.status_code = 503
    return {
        **_head("ready" if is_ready else "not_ready"),
        "checks": {
            "server": {
                "status": "ok" if is_ready else "error",
                "message": _reason_for_clients(request, fault) if fault else "serving",
            },
            "models": {"status": "ok", "message": loaded or "none loaded; models are loaded on request"},
            "queue": {
                "status": "ok" if has_room else "error",
                "message": places,
            },
        },
    }


async def live(request: Request) -> dict[str, Any]:
    """Return 200 if the process is alive."""
    state: Health = request.app.state.health
    return {**_head("alive"), "uptime_seconds": round(time.monotonic() - state.started, 3)}


Report = Callable[..., Coroutine[Any, Any, dict[str, Any]]]

_REPORTS: dict[str, Report] = {"health": health, "status": status, "ready": ready, "live": live}


def health_router(dialects: Iterable[Dialect]) -> APIRouter:
    """Return the health routes of the dialects. Only the first path of each report is in the OpenAPI schema."""
    router = APIRouter(tags=["health"])
    for dialect in dialects:
        described: set[str] = set()
        for path, report in dialect.health.items():
            router.get(path, include_in_schema=report not in described)(_REPORTS[report])
            described.add(report)
    return router
