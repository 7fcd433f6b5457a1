"""GET /version, /load and /tokenizer_info: what programs made for vLLM ask a server beside its answers."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly import __version__
from woolly.serving.dialects.llama.vocabulary import read_vocabulary
from woolly.serving.router import APIRouter

__all__ = ["load", "router", "tokenizer_info", "version"]

router = APIRouter()


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Woolly."""
    return {"version": __version__}


@router.get("/load")
async def load(request: Request) -> dict[str, int]:
    """How many answers run or wait, as vLLM tells it."""
    return {"server_load": request.app.state.generator.admission.n_open}


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
    """The tokens with a meaning of their own, and the chat template, under the names of a tokenizer's configuration."""
    state = request.app.state
    found = await read_vocabulary(await state.models.answering(model), state.models, state.settings)
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
