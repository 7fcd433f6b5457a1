"""/api/version, /api/tags, /api/ps and /api/show: version and models."""

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
from woolly.serving.dialects.ollama.names import find_model, tagged
from woolly.serving.dialects.ollama.replies import moment
from woolly.serving.dialects.reply import json_reply
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import input_modalities
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.model_manager.resolver import is_allowed
from woolly.serving.router import APIRouter
from woolly.store import Preset, quant_of

router = APIRouter()

_SPOKEN = "0.35.0"  # version of Ollama's API; clients reject lower versions
_NEVER = 253_370_764_800  # the year 9999
_SHORT = 5  # longer lists in a description are omitted


class ShowBody(BaseModel):
    """Body of /api/show."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    name: str | None = Field(None, description="Same as model, for older clients.")
    verbose: bool | None = Field(None, description="Include long lists of the model file.")


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version", summary="Show the version")
async def version() -> dict[str, str]:
    """Return the supported version of Ollama's API and the version of Woolly."""
    return {"version": _SPOKEN, "woolly": __version__}


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags", summary="List the models")
async def list_models(request: Request) -> dict[str, Any]:
    """List all models."""
    models: ModelManager = request.app.state.models
    return {"models": [_listed(info) for info in await models.list()]}


@router.get("/api/ps", summary="List the loaded models")
async def list_loaded(request: Request) -> dict[str, Any]:
    """List the loaded models that the key may use."""
    models: ModelManager = request.app.state.models
    found = []
    for slot in models.loaded_models:
        if slot.llm is not None and is_allowed(slot.info):
            keep = models.keep_alive_of(slot.info.name)
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
    """Describe a model: metadata, template and capabilities."""
    name = body.model or body.name
    info = await find_model(request, name)
    metadata = await asyncio.to_thread(_metadata, info)
    template = _template(request, info, metadata)
    writes = info.kind == "completion"
    capabilities: list[str] = ["completion"] if writes else list(info.capabilities)
    if template and writes:
        capabilities.append("tools")
    if "tokenizer.ggml.fim_pre_token_id" in metadata or "tokenizer.ggml.prefix_token_id" in metadata:
        capabilities.append("insert")
    if writes and _thinks(template):
        capabilities.append("thinking")
    kinds = await input_modalities(info, request.app.state.settings, request.app.state.models.ready(info.name))
    capabilities += [word for kind, word in (("image", "vision"), ("audio", "audio")) if kind in kinds]
    derived = await request.app.state.models.find_derived(name)
    own_ctx = [] if derived is None or derived.ctx is None else [f"num_ctx {derived.ctx}"]
    parameters = [*(own_ctx or [f"num_ctx {info.context_length}"]), *_parameters(derived)]
    system = {} if derived is None or derived.system is None else {"system": derived.system}
    lines = [
        f"FROM {info.path.name}",
        *(f'SYSTEM """{text}"""' for text in system.values()),
        *(f"PARAMETER {one}" for one in [*own_ctx, *parameters[1:]]),
    ]
    return json_reply(
        {
            "modelfile": "\n".join(lines) + "\n",
            "parameters": "\n".join(parameters),
            "template": template,
            **system,
            **_license(metadata),
            "details": _details(info),
            "model_info": {
                **{key: _plain(value, is_full=bool(body.verbose)) for key, value in metadata.items()},
                # Clients use this as the available context, so it is the server's value.
                f"{info.architecture}.context_length": info.context_length,
            },
            "capabilities": capabilities,
            "modified_at": moment(info.created),
        }
    )


def _parameters(derived: Preset | None) -> list[str]:
    """Return the options of a derived model as Modelfile lines."""
    given = {} if derived is None else derived.sampling
    names = {"max_tokens": "num_predict"}
    return [
        f"{names.get(name, name)} {one}"
        for name, value in given.items()
        for one in (value if isinstance(value, list) else [value])
    ]


async def can_think(request: Request, info: ModelInfo) -> bool:
    """Return True if the model's template supports reasoning."""
    slot = request.app.state.models.ready(info.name)
    if slot is not None and slot.llm is not None:
        source = slot.llm.template.source
    else:
        source = _template(request, info, await asyncio.to_thread(_metadata, info))
    return _thinks(source)


def _thinks(template: str) -> bool:
    return find_reasoning(template) is not None or "enable_thinking" in template


def _template(request: Request, info: ModelInfo, metadata: Mapping[str, Any]) -> str:
    """Return the chat template of the settings or the model file, or "" if there is none."""
    template = request.app.state.settings.template_source or metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else ""


def _license(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the license in the metadata, with the URL of its text."""
    found = [metadata.get(f"general.license{part}") for part in ("", ".name", ".link")]
    text = "\n".join(line for line in found if isinstance(line, str) and line)
    return {"license": text} if text else {}


def _listed(info: ModelInfo) -> dict[str, Any]:
    # Not the file's checksum, which would require reading the file, but equally stable while the file is unchanged.
    identity = f"{info.path.name} {info.size_bytes} {info.created}".encode("utf-8", "surrogatepass")
    return {
        "name": tagged(info.name),
        "model": tagged(info.name),
        "modified_at": moment(info.created),
        "size": info.size_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),
        "details": _details(info),
        "capabilities": [word for word in info.capabilities if word != "chat"],  # Ollama does not have this capability
    }


def _details(info: ModelInfo) -> dict[str, Any]:
    n = info.parameters
    return {
        "parent_model": info.base or "",
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


def _plain(value: Any, *, is_full: bool) -> Any:
    """Convert a metadata value to JSON; long lists are empty unless requested in full."""
    if isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping) or not hasattr(value, "__len__"):
        return str(value)
    if len(value) > _SHORT and not is_full:
        return []
    listed = value.tolist() if hasattr(value, "tolist") else list(value)
    return [_plain(one, is_full=is_full) for one in listed]
