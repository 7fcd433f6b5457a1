"""/api/version, /api/tags, /api/ps and /api/show: the server and its models."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from woolly import __version__
from woolly.chat.reasoning import find_reasoning
from woolly.gguf import open_gguf
from woolly.serving.dialects.answer import json_reply
from woolly.serving.dialects.ollama.names import tagged
from woolly.serving.dialects.ollama.replies import moment
from woolly.serving.errors import ApiError
from woolly.serving.loading.manager import ModelInfo, ModelManager
from woolly.serving.router import APIRouter
from woolly.store import quant_of

__all__ = ["ShowBody", "list_loaded", "list_models", "router", "show", "version"]

router = APIRouter()

_SPOKEN = "0.35.0"  # the version of Ollama's API; clients refuse lower ones
_NEVER = 253_370_764_800  # the year 9999
_SHORT = 5  # items of a list that a description shows


class ShowBody(BaseModel):
    """Which model."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    name: str | None = Field(None, description="As model, for older clients.")
    verbose: bool | None = Field(None, description="Long lists of the file too.")


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", summary="Tell the version")
async def version() -> dict[str, str]:
    """The version of Ollama's API that is spoken here, and Woolly's own."""
    return {"version": _SPOKEN, "woolly": __version__}


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", summary="List the models")
async def list_models(request: Request) -> dict[str, Any]:
    """Every model that can be asked for."""
    models: ModelManager = request.app.state.models
    return {"models": [_listed(info) for info in await models.list()]}


@router.get("/api/ps", summary="List the loaded models")
async def list_loaded(request: Request) -> dict[str, Any]:
    """Every model in memory."""
    models: ModelManager = request.app.state.models
    found = []
    for slot in models.all_loaded:
        if slot.llm is not None:
            keep = models.kept(slot.info.name)
            end = min(_NEVER, time.time() + keep - (time.monotonic() - slot.last_used))
            size = slot.n_bytes or slot.info.size_bytes
            found.append(
                {
                    **_listed(slot.info),
                    "size": size,
                    "size_vram": 0,
                    "expires_at": moment(end),
                    "context_length": slot.llm.ctx,
                }
            )
    return {"models": found}


@router.post("/api/show", response_model=None, summary="Describe a model")
async def show(body: ShowBody, request: Request) -> Response:
    """What the file says about itself, and what the model can do."""
    name = body.model or body.name
    if not name:
        raise ApiError(400, "invalid_request", "model: it is missing", param="model")
    info = await request.app.state.models.get(name)
    metadata = await asyncio.to_thread(_metadata, info)
    template = request.app.state.settings.chat_template or metadata.get("tokenizer.chat_template")
    template = template if isinstance(template, str) else ""
    writes = info.kind == "completion"
    capabilities: list[str] = ["completion"] if writes else list(info.capabilities)
    if template and writes:
        capabilities.append("tools")
    if "tokenizer.ggml.fim_pre_token_id" in metadata or "tokenizer.ggml.prefix_token_id" in metadata:
        capabilities.append("insert")
    if writes and find_reasoning(template) is not None:
        capabilities.append("thinking")
    return json_reply(
        {
            "modelfile": f"FROM {info.path.name}\n",
            "parameters": f"num_ctx {info.context_length}",
            "template": template,
            "details": _details(info),
            "model_info": {
                **{key: _plain(value, whole=bool(body.verbose)) for key, value in metadata.items()},
                # Clients take it for the room that they have, which is the server's, not the model's.
                f"{info.architecture}.context_length": info.context_length,
            },
            "capabilities": capabilities,
            "modified_at": moment(info.created),
        }
    )


def _listed(info: ModelInfo) -> dict[str, Any]:
    # Not the file's checksum, which takes as long as reading it: the same as long as the file is.
    identity = f"{info.path.name} {info.size_bytes} {info.created}".encode("utf-8", "surrogatepass")
    return {
        "name": tagged(info.name),
        "model": tagged(info.name),
        "modified_at": moment(info.created),
        "size": info.size_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),
        "details": _details(info),
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    n = info.parameters
    return {
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M",
        "quantization_level": quant_of(info.path.name) or "unknown",
        "context_length": info.context_length,
    }


def _metadata(info: ModelInfo) -> dict[str, Any]:
    with open_gguf(info.path) as file:
        return {key: file.metadata[key] for key in file.metadata}


def _plain(value: Any, *, whole: bool) -> Any:
    """Returns a value of the file as JSON can hold it; a long list is empty unless all of it is asked for."""
    if isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping) or not hasattr(value, "__len__"):
        return str(value)
    if len(value) > _SHORT and not whole:
        return []
    listed = value.tolist() if hasattr(value, "tolist") else list(value)
    return [_plain(one, whole=whole) for one in listed]
