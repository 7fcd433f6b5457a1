"""The FastAPI app: routes, middleware and shared state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from woolly import __version__
from woolly.llm.bit_identity import device_bytes
from woolly.serving.accounts.account import current_account
from woolly.serving.accounts.usage_ledger import UsageLedger
from woolly.serving.accounts.usage_meter import UsageMeter
from woolly.serving.batches.store import BatchStore
from woolly.serving.batches.worker import BatchWorker
from woolly.serving.dialect import Dialect, Dialects
from woolly.serving.dialects import anthropic, cohere, gemini, llama, lmstudio, mcp, ole, ollama, openai, responses
from woolly.serving.dialects.unsupported_routes import no_such_route, unsupported_reason
from woolly.serving.errors import ApiError, feature_disabled, release_frames, to_api_error
from woolly.serving.gate.access_control import AccessMiddleware
from woolly.serving.gate.api_prefix import PrefixMiddleware
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.gate.cors import CorsMiddleware
from woolly.serving.gate.disconnect import DisconnectMiddleware
from woolly.serving.gate.draining import DrainingMiddleware
from woolly.serving.gate.error_handler import ErrorMiddleware
from woolly.serving.gate.exempt_paths import ExemptPaths
from woolly.serving.gate.origins import AllowedOrigins
from woolly.serving.gate.rate_limits import KeyGuessLimiter, RateLimiter, RateLimitMiddleware
from woolly.serving.gate.request_body import BodyBudget, BodyMiddleware
from woolly.serving.gate.request_id import RequestIdMiddleware
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.resumable_streams import ResumableStreams
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.observability.health import Health, health_router
from woolly.serving.observability.metrics import DeviceMetrics, EngineMetrics, EngineStats, Stats
from woolly.serving.observability.request_history import RequestHistory
from woolly.serving.observability.traces import open_traces
from woolly.serving.pages import web
from woolly.serving.pages.api_reference import add_reference, is_reference
from woolly.serving.pages.openapi import describe
from woolly.serving.pages.static_folder import Folder
from woolly.serving.router import APIRouter
from woolly.serving.settings.checks import check_keys
from woolly.serving.settings.table import Settings

_CODES = {404: "not_found", 405: "method_not_allowed"}
# (field that the body has instead of the missing one, hint), by missing field
_OTHER_WORDS = {
    "messages": ("prompt", "prompt belongs to POST /v1/completions"),
    "prompt": ("messages", "messages belong to POST /v1/chat/completions"),
}
_CLOSING = 5.0  # seconds for models to close when the app stops

DIALECTS: tuple[Dialect, ...] = (
    openai.DIALECT,
    responses.DIALECT,
    anthropic.DIALECT,
    ollama.DIALECT,
    ole.DIALECT,
    mcp.DIALECT,
    cohere.DIALECT,
    lmstudio.DIALECT,
    gemini.DIALECT,
    llama.DIALECT,
)


def create_app(settings: Settings, dialects: Sequence[Dialect] = DIALECTS) -> FastAPI:
    """Return the server as an ASGI app; its routes share `app.state`.

    http_server.py loads models at startup. Otherwise, the first request that needs a model loads the model.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ledger: UsageLedger | None = app.state.meter.ledger
        works = [one.run() for one in (ledger, app.state.authenticator.issuer) if one is not None]
        tasks = [asyncio.create_task(work) for work in works]
        end_traces: Callable[[], None] | None = None
        if (endpoint := settings.otlp_endpoint) is not None:
            app.state.traces, end_traces = open_traces(endpoint, __version__)
        async with AsyncExitStack() as stack:
            for dialect in dialects:
                for part in dialect.router.lifespans():
                    await stack.enter_async_context(part(app))
            yield
        app.state.generator.stop()
        app.state.generator.media_pool.shutdown(wait=False, cancel_futures=True)
        await app.state.batches.stop()
        await app.state.streams.close()
        # Loading and computation cannot be interrupted, but the sessions file must be closed in any case.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(app.state.models.close(), _CLOSING)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if ledger is not None:
            await ledger.flush()
        if end_traces is not None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(end_traces), _CLOSING)

    # pages/api_reference.py serves /docs and /openapi.json.
    app = FastAPI(title="Woolly", version=__version__, lifespan=lifespan, openapi_url=None)
    app.state.settings = settings
    app.state.traces = None  # set by `lifespan` if traces are exported
    has_vllm = settings.metrics_names == "vllm"
    app.state.stats = stats = Stats(has_vllm)
    app.state.request_history = RequestHistory(settings.keep_requests, settings.keep_texts)
    plain, admins, named = check_keys(settings)
    app.state.authenticator = Authenticator(
        plain, settings.signing_secret, settings.token_lifetime, admins, named, settings.issuer
    )
    usage = settings.usage_path
    app.state.meter = meter = UsageMeter(ledger=None if usage is None else UsageLedger(usage))
    app.state.models = ModelManager(settings)
    app.state.generator = generator = Generator(settings, app.state.models, stats, meter)
    app.state.streams = ResumableStreams()
    app.state.batches = BatchWorker(app, BatchStore(settings.batches_path, settings.max_files_bytes))
    app.state.health = Health()
    app.state.health.find_fault = app.state.models.device_failures.first_message
    app.state.dialects = Dialects(dialects)
    app.state.rates = RateLimiter(settings.rate_limit)
    app.state.key_guesses = KeyGuessLimiter()
    app.state.bodies = BodyBudget(settings.max_bodies_bytes)
    stats.watch("woolly_answers_open", "Answers that run or wait.", lambda: generator.admission.n_open)
    stats.watch("woolly_answers_waiting", "Answers that wait.", lambda: generator.admission.n_waiting)
    stats.watch("woolly_models_loaded", "Models that are loaded.", lambda: len(app.state.models.loaded_models))

    _watch_disk(stats, app.state.models)
    stats.registry.register(DeviceMetrics(lambda: _devices(app.state.models)))
    stats.registry.register(EngineMetrics(lambda: _engines(app.state.models), has_vllm))

    for kind in (ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _reply)
    folder = None if settings.path is None else Folder(settings.path)
    routers = [health_router(dialects), _metrics_router(dialects), *(dialect.router for dialect in dialects)]
    if folder is None:
        routers.append(web.create_router(has_page=settings.webui))
    for router in routers:
        router.add_to(app)
    describe(app)
    add_reference(app)

    if folder is not None:
        app.mount("/", folder)  # last, because the folder matches every path without a route

    app.user_middleware = _layers(app.state, web.is_public if folder is None else folder.is_public)
    return app


def _watch_disk(stats: Stats, models: ModelManager) -> None:
    """Add gauges for the disk cache (--cache-disk), summed over the loaded models."""

    def total(field: str) -> float:
        found = (slot.llm.known_disk_stats for slot in models.loaded_models if slot.llm is not None)
        return float(sum(getattr(one, field) for one in found if one is not None))

    for name, field, help in (
        ("woolly_cache_disk_files", "n_files", "Files of cached prompts on disk."),
        ("woolly_cache_disk_tokens_read", "read_tokens", "Prompt tokens read from disk."),
        ("woolly_cache_disk_bytes_written", "written_bytes", "Bytes written to disk."),
        ("woolly_cache_disk_damaged", "n_damaged", "Damaged files, which were removed."),
    ):
        stats.watch(name, help, partial(total, field))


def _devices(models: ModelManager) -> Iterator[tuple[str, str, int | None]]:
    """Yield the name, device and GPU memory in bytes (None for the CPU) for each loaded model."""
    for slot in models.loaded_models:
        if slot.state == "ready" and slot.llm is not None and not slot.llm.is_closed:
            yield slot.info.name, slot.llm.place, device_bytes(slot.llm.engine)


def _engines(models: ModelManager) -> Iterator[EngineStats]:
    """Yield statistics of the engines in this process.

    This function only reads counts, which is safe while the engine runs.
    """
    for slot in models.loaded_models:
        if slot.state == "ready" and slot.llm is not None and not slot.llm.is_closed:
            scheduler = getattr(slot.llm.engine, "scheduler", None)  # engines of replicas are in other processes
            if scheduler is not None:
                used = scheduler.pages.n_pages - scheduler.pages.n_free
                counts = (len(scheduler.running), len(scheduler.waiting), scheduler.pages.n_pages, used)
                yield EngineStats(slot.info.name, *counts)


def _layers(state: State, is_page: Callable[[str, str], bool]) -> list[Middleware]:
    """Return the middleware, outermost first."""
    settings: Settings = state.settings
    dialects: Dialects = state.dialects
    paths = ExemptPaths(
        health=frozenset(path for dialect in dialects for path in dialect.health),
        tokens=frozenset(path for dialect in dialects for path in dialect.tokens),
        metrics=frozenset(path for dialect in dialects for path in dialect.metrics),
        polled=frozenset(path for dialect in dialects for path in dialect.polled),
        query_key=lambda path: dialects.of(path).query_key,
        is_page=is_page,
        is_reference=is_reference,
    )
    layers = [
        Middleware(
            RequestIdMiddleware,
            stats=state.stats,
            paths=paths,
            quotas=state.meter.quotas,
            history=state.request_history,
            traces=lambda: state.traces,
        ),
        Middleware(ErrorMiddleware, stats=state.stats, dialects=dialects),
        Middleware(
            AccessMiddleware,
            settings=settings,
            authenticator=state.authenticator,
            rates=state.rates,
            key_guesses=state.key_guesses,
            paths=paths,
        ),
        Middleware(RateLimitMiddleware, rates=state.rates, paths=paths),
        Middleware(DrainingMiddleware, health=state.health, paths=paths),
        Middleware(
            BodyMiddleware,
            budget=state.bodies,
            most=settings.max_body_bytes,
            seconds=settings.timeout,
            takes_any=lambda path: dialects.of(path).takes_any_type,
        ),
        Middleware(DisconnectMiddleware, health=state.health),
    ]
    layers.insert(0, Middleware(CorsMiddleware, origins=AllowedOrigins(settings)))
    if settings.api_prefix:
        layers.insert(0, Middleware(PrefixMiddleware, prefix=settings.api_prefix))
    return layers


def _metrics_router(dialects: Sequence[Dialect]) -> APIRouter:
    router = APIRouter(tags=["metrics"])
    for path in (path for dialect in dialects for path in dialect.metrics):
        router.get(path, response_class=Response)(_prometheus)
    return router


async def _prometheus(request: Request) -> Response:
    """Return metrics in Prometheus' text format, restricted to the models that the key may use."""
    if not request.app.state.settings.metrics:
        raise feature_disabled("GET /metrics", "--metrics")
    state = request.app.state
    account = current_account.get()
    # The metrics must not reveal models that a key may not use.
    shown = {one.name for one in await state.models.list()} if account is not None and account.models else None
    text = state.stats.text(shown) + state.dialects.of(request.url.path).more_metrics(state).encode()
    started = {"Process-Start-Time-Unix": str(int(state.stats.started_at))}
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8", headers=started)


async def _reply(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, RequestValidationError):
        api_error = _invalid(error)
    elif isinstance(error, HTTPException):
        api_error = _of_status(request, error)
    else:
        api_error = to_api_error(error)
    request.app.state.stats.count_error(api_error.code)
    request.state.reason = api_error.reason
    release_frames(error)
    headers = {**api_error.headers, **(getattr(error, "headers", None) or {})}
    return JSONResponse(request.app.state.dialects.of(request.url.path).error(api_error), api_error.status, headers)


def _of_status(request: Request, error: HTTPException) -> ApiError:
    code, reason = _CODES.get(error.status_code, "invalid_request"), error.detail
    if error.status_code == 404 and reason == HTTPStatus.NOT_FOUND.phrase:  # no route gave a reason
        absent = unsupported_reason(request.url.path)
        code = code if absent is None else "not_supported"
        reason = absent or no_such_route(request.url.path)
    allowed = (error.headers or {}).get("Allow") if error.status_code == 405 else None
    if allowed:
        reason = f"method not allowed; send {' or '.join(sorted(allowed.split(', ')))}"
    return ApiError(error.status_code, code, f"{request.method} {request.url.path[:200]}: {reason}")


def _invalid(error: RequestValidationError) -> ApiError:
    """Return a one-sentence error for the first problem; unknown fields come last."""
    first: Any = min(error.errors(), key=lambda one: one["type"] == "extra_forbidden")
    place = _place(first)
    if first["type"] in ("missing", "model_attributes_type") and not place:
        return ApiError(
            400,
            "invalid_request",
            "the body must be a JSON object",
        )
    message = first["msg"][:1].lower() + first["msg"][1:].replace(" after validation", "")
    if first["type"] == "missing" and place in _OTHER_WORDS:
        given, says = _OTHER_WORDS[place]
        message += f"; {says}" * any(_place(one) == given for one in error.errors())
    return ApiError(400, "invalid_request", f"{place or 'the body'}: {message}", param=place or None)


# names of union members in pydantic's locations
_TYPE_NAMES = frozenset({"bool", "bytes", "dict", "float", "int", "list", "none", "str", "tuple"})


def _place(problem: Any) -> str:
    """Return the path of the field, without the union member that pydantic appends."""
    parts = itertools.takewhile(_is_of_the_request, problem["loc"][1:])
    return ".".join(str(part) for part in parts)[:200]


def _is_of_the_request(part: Any) -> bool:
    return not isinstance(part, str) or not (part in _TYPE_NAMES or "[" in part or "-" in part)
