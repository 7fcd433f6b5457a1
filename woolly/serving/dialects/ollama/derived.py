"""/api/create, /api/copy and /api/delete: models derived with a system prompt and options."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from woolly.errors import StoreError
from woolly.llm.presets import load_of
from woolly.serving.dialect import dialect_of
from woolly.serving.dialects.ollama.names import find_model
from woolly.serving.dialects.ollama.options import read_derived_options
from woolly.serving.dialects.ollama.replies import line
from woolly.serving.dialects.reply import json_reply, stream_reply
from woolly.serving.errors import ApiError, invalid_param
from woolly.serving.gate.request_id import check_admin
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.observability.logs import ignore, log
from woolly.serving.router import APIRouter
from woolly.serving.settings.table import Settings
from woolly.store import Preset, remove_derived, write_derived

router = APIRouter()

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,79}(:[A-Za-z0-9._-]{1,79})?")
_MAX_SYSTEM_CHARS = 64 * 1024  # characters
_REJECTED = {
    "template": "only the template of the model's file is supported; remove this field",
    "messages": "derived models cannot have messages; send them to /api/chat",
    "files": "uploads are not supported; put a GGUF file into the models folder",
    "adapters": "adapters are set with --lora",
    "quantize": "run `woolly quantize` on the server",
    "modelfile": "send its lines as the fields from, system and parameters",
}


class CreateBody(BaseModel):
    """Derived model with its base, system prompt and options."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    model: str | None = None
    name: str | None = Field(None, description="Same as model, for older clients.")
    base: str | None = Field(None, alias="from", description="Base model.")
    system: str | None = Field(None, description="Default system prompt.")
    parameters: dict[str, Any] | None = Field(None, description="Default options.")
    license: str | list[str] | None = Field(None, description="Accepted without effect.")
    stream: bool | None = None
    template: str | None = None
    messages: list[Any] | None = None
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    quantize: str | None = None
    modelfile: str | None = None


class CopyBody(BaseModel):
    """Existing and new name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    source: str
    destination: str


class DeleteBody(BaseModel):
    """Name to delete."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    name: str | None = Field(None, description="Same as model, for older clients.")


@router.post("/api/create", response_model=None, summary="Create a derived model (needs --allow-changes)")
async def create(body: CreateBody, request: Request) -> Response:
    """Create a derived model with a system prompt and options, which is available immediately."""
    _check_allowed(request)
    for field, why in _REJECTED.items():
        if getattr(body, field):
            raise invalid_param(field, why)
    if body.license:
        ignore("license")
    if not body.base:
        raise invalid_param("from", "missing; expected the name of an installed model")
    if len(body.system or "") > _MAX_SYSTEM_CHARS:
        raise invalid_param(
            "system", f"expected at most {_MAX_SYSTEM_CHARS} characters, but got {len(body.system or '')}"
        )
    options = body.parameters or {}
    await _make(request, body.model or body.name, body.base, body.system, options)
    if body.stream is False:
        return json_reply({"status": "success"})
    return stream_reply(dialect_of(request), _lines(), AsyncExitStack())


@router.post("/api/copy", response_model=None, summary="Copy a model name (needs --allow-changes)")
async def copy(body: CopyBody, request: Request) -> Response:
    """Create another name for a model or a derived model."""
    _check_allowed(request)
    await _make(request, body.destination, body.source, None, {})
    return Response()


@router.delete("/api/delete", response_model=None, summary="Delete a derived model (needs --allow-changes)")
async def delete(body: DeleteBody, request: Request) -> Response:
    """Delete a name created by /api/create or /api/copy. Model files are never deleted."""
    _check_allowed(request)
    name = body.model or body.name
    info = await find_model(request, name)
    folder = request.app.state.settings.folder
    if not await _stored(remove_derived, folder, (name or "").removesuffix(":latest")):
        raise ApiError(
            403,
            "access_denied",
            f"{info.name} is a model file, which requests cannot delete; run `woolly rm` on the server",
        )
    log.info("model name removed", extra={"model": name})
    return Response()


async def _make(request: Request, given: str | None, base: str, system: str | None, options: dict[str, Any]) -> None:
    """Store a derived model. If the base is a derived model, its prompt and parameters are inherited."""
    models: ModelManager = request.app.state.models
    name = (given or "").removesuffix(":latest")
    if not _NAME.fullmatch(name):
        raise invalid_param(
            "model", f"expected letters, digits, . _ - / and a tag after a colon, but got {name[:80]!r}"
        )
    info = await find_model(request, base)
    inherited = await models.find_derived(base)
    sampling = {} if inherited is None else _settings_of(inherited)
    defaults = await request.app.state.generator.defaults_for(base)
    sampling |= read_derived_options(options, defaults, info.context_length)
    if any(one.has_name(name) for one in await models.list() if one.base is None):
        raise invalid_param("model", f"{name!r} is the name of a model file; choose another name")
    if system is None and inherited is not None:
        system = inherited.system
    model = info.base or info.name  # the base of a derived model, which may change or be removed later
    await _stored(write_derived, request.app.state.settings.folder, name, model, system, sampling)
    log.info("model name made", extra={"model": name, "base": model})


def _settings_of(derived: Preset) -> dict[str, Any]:
    """Return the loading and sampling settings of a derived model, with absolute adapter paths."""
    load = load_of(derived)
    ctx = {} if derived.ctx is None else {"ctx": derived.ctx}
    return {**derived.sampling, **ctx, **({"lora": list(load["adapters"])} if "adapters" in load else {})}


def _check_allowed(request: Request) -> None:
    settings: Settings = request.app.state.settings
    if not settings.allow_changes:
        path = f"{request.method} {request.url.path}"
        raise ApiError(403, "access_denied", f"{path} is disabled; start the server with --allow-changes")
    check_admin(request)


async def _stored(change: Any, *given: Any) -> Any:
    try:
        return await asyncio.to_thread(change, *given)
    except StoreError as error:
        raise ApiError(400, "invalid_request", str(error), param="model") from None
    except OSError as error:
        raise ApiError(500, "not_written", f"cannot write to the models folder: {error.strerror}") from None


async def _lines() -> AsyncIterator[bytes]:
    for status in ("using existing layer", "writing manifest", "success"):
        yield line({"status": status})
