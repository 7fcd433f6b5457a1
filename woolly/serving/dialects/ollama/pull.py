"""POST /api/pull: reports success for installed models, and downloads others with --allow-pull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.errors import StoreError
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.ollama.replies import line
from woolly.serving.dialects.reply import json_reply, stream_reply
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.gate.request_id import check_admin
from woolly.serving.router import APIRouter
from woolly.serving.settings.table import Settings
from woolly.store import HubName, is_in_catalogue, is_path, models_folder, remote_name
from woolly.store import pull as fetch

router = APIRouter()

_SUCCESS = {"status": "success"}


class PullBody(BaseModel):
    """Body of /api/pull."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    name: str | None = Field(None, description="Same as model, for older clients.")
    stream: bool | None = Field(None, description="Stream the progress; default true.")
    insecure: bool | None = Field(None, description="Accepted without effect.")


@router.post("/api/pull", response_model=None, summary="Download a model (needs --allow-pull)")
async def pull(body: PullBody, request: Request) -> Response:
    """Report success for an installed model. Other models are downloaded only with --allow-pull."""
    name = body.model or body.name
    if not name:
        raise ApiError(400, "invalid_request", "model: missing", param="model")
    steps = _nothing() if await _is_here(request, name) else _download(_allowed(request, name))
    if body.stream is False:
        async for _ in steps:
            pass
        return json_reply(_SUCCESS)
    return stream_reply(dialect_of(request), _lines(steps), AsyncExitStack())


async def _is_here(request: Request, name: str) -> bool:
    try:
        await request.app.state.models.get(name)
    except ApiError as error:
        if error.code != "model_not_found":
            raise
        return False
    return True


def _allowed(request: Request, name: str) -> str:
    """Return the name for the store. Raises ApiError 403 or 400 if the client may not download the model."""
    settings: Settings = request.app.state.settings
    if not settings.allow_pull:
        raise ApiError(
            403,
            "access_denied",
            f"{name[:200]} is not installed, and downloads are disabled; run `woolly pull {name[:200]}`, or start the"
            " server with --allow-pull",
        )
    check_admin(request)
    name = name.removesuffix(":latest")
    if not _is_public(name):
        raise invalid_param("model", f"expected a name from the catalogue or the hub, but got {name[:200]!r}")
    if settings.folder != models_folder():
        raise ApiError(
            400, "invalid_request", "downloads are not supported with --models-dir; run `woolly pull` on the server"
        )
    return name


def _is_public(name: str) -> bool:
    """Return True if the name is in the catalogue or on the hub, not a local path or URL."""
    try:
        return is_in_catalogue(name) or (not is_path(name) and isinstance(remote_name(name), HubName))
    except StoreError:
        return False


async def _nothing() -> AsyncIterator[dict[str, Any]]:
    return
    yield {}


async def _download(name: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the progress of a download, which continues if the client disconnects."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def report(done: int, total: int) -> None:
        news_line = {"status": f"pulling {name}", "total": total, "completed": done}
        loop.call_soon_threadsafe(news.put_nowait, news_line)

    async def work() -> None:
        try:
            await asyncio.to_thread(fetch, name, progress=report)
        finally:
            news.put_nowait(None)

    task = asyncio.create_task(work())
    while (step := await news.get()) is not None:
        yield step
    try:
        await task
    except StoreError as error:
        raise ApiError(400, "model_not_found", str(error), param="model") from error


async def _lines(steps: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    yield line({"status": "pulling manifest"})
    async for step in steps:
        yield line(step)
    yield line({"status": "verifying sha256 digest"})
    yield line({"status": "writing manifest"})
    yield line(_SUCCESS)
