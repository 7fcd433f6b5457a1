"""GET and POST /props: properties of the server."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from woolly.multimodal.pdf import missing_reader
from woolly.sampling import SamplingParams, options_of
from woolly.serving.dialects.completions.envelope import BUILD
from woolly.serving.dialects.llama.media_markers import MARK
from woolly.serving.dialects.llama.parameters import generation_settings
from woolly.serving.dialects.llama.vocabulary import read_vocabulary
from woolly.serving.errors import ApiError, feature_disabled
from woolly.serving.gate.request_id import check_admin
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import input_modalities
from woolly.serving.observability.logs import ignore
from woolly.serving.router import APIRouter
from woolly.serving.settings.checks import reads_ahead
from woolly.serving.settings.table import Settings

router = APIRouter()


@router.get("/props")
async def props(request: Request, model: str | None = None) -> dict[str, Any]:
    """Return default settings, slots and chat template, without loading a model."""
    state = request.app.state
    models: ModelManager = state.models
    generator: Generator = state.generator
    settings: Settings = state.settings
    n_slots = len(generator.slots)
    try:
        info = await models.get(model)
    except ApiError as error:
        if model is not None or error.code != "model_required":
            raise
        return _of_many(settings, n_slots)
    defaults = await generator.defaults_for(info.name)
    slot = models.ready(info.name)
    vocabulary = await read_vocabulary(info, models, settings)
    kinds = await input_modalities(info, settings, slot)
    return {
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": info.context_length,
            "speculative": slot is not None and slot.is_speculative,
            "is_processing": False,
            "params": generation_settings(defaults, limit=defaults.max_tokens),
            "prompt": "",
            "next_token": [
                {"has_next_token": True, "has_new_line": False, "n_remain": -1, "n_decoded": 0, "stopping_word": ""}
            ],
        },
        # Woolly only: sampling options of the web page, why the server cannot read PDF files (None: it can), and
        # whether the page may send text while the user types.
        "sampling_options": [row.to_form() for row in options_of(SamplingParams).values() if row.group],
        "pdf_reason": missing_reader(),
        "read_ahead": reads_ahead(settings),
        "total_slots": n_slots,
        "model_alias": info.name,
        "model_path": info.path.name,  # without the folder, which is private
        "chat_template": vocabulary.template,
        "chat_template_caps": vocabulary.caps,
        "bos_token": vocabulary.bos or "",
        "eos_token": vocabulary.eos or "",
        "media_marker": MARK,
        "capabilities": list(info.capabilities),  # Woolly only, as in /v1/models
        "modalities": {"vision": "image" in kinds, "audio": "audio" in kinds},
        "build_info": BUILD,
        "role": "model",
        "is_sleeping": not info.loaded,
    }


@router.post("/props")
async def change_props(body: dict[str, Any], request: Request) -> dict[str, bool]:
    """Accept property changes without effect, as llama-server does; needs --props."""
    settings: Settings = request.app.state.settings
    if not settings.props:
        raise feature_disabled("POST /props", "--props")
    check_admin(request)
    for name in body:
        ignore(name)
    return {"success": True}


def _of_many(settings: Settings, n_slots: int) -> dict[str, Any]:
    """Return the properties of a server without a default model."""
    return {
        "role": "router",
        "max_instances": settings.max_models or 0,
        "models_autoload": settings.models_autoload,
        "total_slots": n_slots,
        "model_alias": None,
        "build_info": BUILD,
    }
