"""GET /props: what the server is set to."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from woolly import __version__
from woolly.gguf import open_gguf
from woolly.serving.generation import Generator
from woolly.serving.llama.parameters import generation_settings
from woolly.serving.models import ModelInfo, ModelManager
from woolly.serving.settings import Settings

__all__ = ["props", "router"]

router = APIRouter()


@router.get("/props")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """The defaults of a request, the slots, and the model's chat template. Nothing is loaded for it."""
    state = request.app.state
    models: ModelManager = state.models
    generator: Generator = state.generator
    settings: Settings = state.settings
    info = await models.get(model)
    defaults = generator.defaults
    return {
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": info.context_length,
            "speculative": settings.model_draft is not None,
            "is_processing": False,
            "params": generation_settings(defaults, limit=defaults.max_tokens),
            "prompt": "",
            "next_token": {
                "has_next_token": True,
                "has_new_line": False,
                "n_remain": -1,
                "n_decoded": 0,
                "stopping_word": "",
            },
        },
        "total_slots": settings.parallel,
        "model_alias": info.name,
        "model_path": info.path.name,  # where the folder lies is nobody's business
        "chat_template": await _template(info, models, settings),
        "chat_template_caps": {},
        "modalities": {"vision": False, "audio": False},
        "build_info": f"woolly-{__version__}",
        "is_sleeping": not info.loaded,
    }


async def _template(info: ModelInfo, models: ModelManager, settings: Settings) -> str:
    if info.loaded:
        async with models.acquire(info.name) as llm:
            return llm.llm.template.source
    if settings.chat_template is not None:
        return settings.chat_template
    return await asyncio.to_thread(_template_of_file, info)


def _template_of_file(info: ModelInfo) -> str:
    with open_gguf(info.path) as file:
        found = file.metadata.get("tokenizer.chat_template", "")
        return found if isinstance(found, str) else ""
