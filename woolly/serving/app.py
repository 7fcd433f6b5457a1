"""The app: routers, what every request passes, and what holds the server's state."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from woolly import __version__
from woolly.serving import health, llama, ole, openai, web
from woolly.serving.absent import why_absent
from woolly.serving.auth import Authority
from woolly.serving.errors import ApiError, error_body, of_exception
from woolly.serving.gate import Gate
from woolly.serving.generation import Generator
from woolly.serving.health import Health
from woolly.serving.limits import BodyBudget, RateLimiter
from woolly.serving.metrics import Stats
from woolly.serving.models import ModelManager
from woolly.serving.openapi import describe
from woolly.serving.reference import add_reference
from woolly.serving.settings import Settings

__all__ = ["create_app"]

_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(settings: Settings) -> FastAPI:
    """The server as an ASGI app; `app.state` holds what its routes share.

    Models are loaded by the server's life (lifecycle.py), or at the first request that needs one.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.generator.stop()
        await app.state.models.close()

    # The reference has routes of its own.
    app = FastAPI(title="Woolly", version=__version__, lifespan=lifespan, openapi_url=None)
    app.state.settings = settings
    app.state.stats = stats = Stats()
    app.state.authority = Authority(settings.keys, settings.token_secret, settings.token_lifetime)
    app.state.models = ModelManager(settings)
    app.state.generator = generator = Generator(settings, app.state.models, stats)
    app.state.health = Health()
    app.state.rates = RateLimiter(settings.rate_limit)
    app.state.bodies = BodyBudget(settings.max_bodies_bytes)
    stats.watch("woolly_answers_open", "Answers that run or wait.", lambda: generator.admission.n_open)
    stats.watch("woolly_answers_waiting", "Answers that wait.", lambda: generator.admission.n_waiting)
    stats.watch("woolly_models_loaded", "Models that are loaded.", lambda: len(app.state.models.all_loaded))

    for kind in (ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _tell)
    app.include_router(health.router)
    if settings.metrics:
        app.include_router(_metrics)
    for dialect in (openai, ole, llama):
        app.include_router(dialect.router)
    app.include_router(web.create_router(has_page=settings.webui))
    describe(app)
    add_reference(app)

    # The last one added is the first that a request meets.
    app.add_middleware(
        Gate,
        settings=settings,
        authority=app.state.authority,
        stats=stats,
        rates=app.state.rates,
        bodies=app.state.bodies,
        health=app.state.health,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


_metrics = APIRouter(tags=["metrics"])


@_metrics.get("/metrics", response_class=Response)
@_metrics.get("/api/v1/metrics", response_class=Response)
async def _prometheus(request: Request) -> Response:
    """Figures since the start, in Prometheus' words."""
    return Response(request.app.state.stats.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _tell(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        told = _invalid(error)
    elif isinstance(error, HTTPException):
        told = _of_status(request, error)
    else:
        told = of_exception(error)
    request.app.state.stats.refused(told.code)
    headers = {**told.headers, **(getattr(error, "headers", None) or {})}
    return JSONResponse(error_body(told, request.url.path), told.status, headers)


def _of_status(request: Request, error: HTTPException) -> ApiError:
    code, reason = _CODES.get(error.status_code, "invalid_request"), error.detail
    if error.status_code == 404 and reason == HTTPStatus.NOT_FOUND.phrase:  # no route said more
        absent = why_absent(request.url.path)
        code = code if absent is None else "not_supported"
        reason = absent or "there is no such route; GET /docs tells of all"
    return ApiError(error.status_code, code, f"{request.method} {request.url.path[:200]}: {reason}")


def _invalid(error: RequestValidationError) -> ApiError:
    """All unknown fields, or the first thing that is wrong, as one sentence."""
    problems = error.errors()
    unknown = [_place(one) for one in problems if one["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(unknown[:20])
        return ApiError(400, "unknown_field", f"not known here: {names}; leave it out", param=unknown[0])
    first: Any = problems[0]
    place = _place(first)
    if first["type"] in ("missing", "model_attributes_type") and not place:
        return ApiError(
            400,
            "invalid_request",
            "a JSON object was expected as the body, named by the header Content-Type: application/json"
            " (with curl: -H 'Content-Type: application/json')",
        )
    message = first["msg"][:1].lower() + first["msg"][1:]
    return ApiError(400, "invalid_request", f"{place or 'the body'}: {message}", param=place or None)


# How pydantic names the members of a union.
_TYPE_NAMES = frozenset({"bool", "bytes", "dict", "float", "int", "list", "none", "str", "tuple"})


def _place(problem: Any) -> str:
    """The field's path, without what pydantic adds to it: which type of a union it had tried."""
    parts = itertools.takewhile(_is_of_the_request, problem["loc"][1:])
    return ".".join(str(part) for part in parts)[:200]


def _is_of_the_request(part: Any) -> bool:
    return not isinstance(part, str) or not (part in _TYPE_NAMES or "[" in part or "-" in part)
