"""Routes of vLLM's server: version, load, tokenizer information and LoRA adapters."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict

from woolly import __version__
from woolly.serving.dialects.llama.vocabulary import read_vocabulary
from woolly.serving.gate.request_id import check_admin
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.router import APIRouter

router = APIRouter()


class LoadBody(BaseModel):
    """An adapter to add, and its model (the default model if there is no name)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: str
    lora_path: str
    model: str | None = None


class UnloadBody(BaseModel):
    """An adapter to remove."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: str
    lora_int_id: int | None = None  # vLLM's adapter id, redundant with the name


@router.get("/version")
async def version() -> dict[str, str]:
    """Return Woolly's version."""
    return {"version": __version__}


@router.get("/load")
async def load(request: Request) -> dict[str, int]:
    """Return the number of running and waiting answers, in vLLM's format."""
    return {"server_load": request.app.state.generator.admission.n_open}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
    """Return special tokens and chat template, with the names of tokenizer_config.json."""
    state = request.app.state
    found = await read_vocabulary(await state.models.resolve(model), state.models, state.settings)
    return {
        "tokenizer_class": found.model,
        "vocab_size": found.n_tokens,
        "bos_token": found.bos,
        "eos_token": found.eos,
        "pad_token": found.pad,
        "unk_token": found.unk,
        "add_bos_token": found.adds_bos,
        "add_eos_token": found.adds_eos,
        "chat_template": found.template,
    }


@router.post("/v1/load_lora_adapter")
async def add_adapter(body: LoadBody, request: Request) -> dict[str, Any]:
    """Add a LoRA file of the models folder to a model; requests can then use its name as the model."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    model = await models.resolve(body.model)
    await models.dynamic_adapters.add(model, body.lora_name, body.lora_path)
    return {"success": True, "model": model.name}


@router.post("/v1/unload_lora_adapter")
async def remove_adapter(body: UnloadBody, request: Request) -> dict[str, Any]:
    """Remove an added adapter; running answers that use it are not affected."""
    check_admin(request)
    models: ModelManager = request.app.state.models
    return {"success": True, "model": await models.dynamic_adapters.remove(body.lora_name)}
