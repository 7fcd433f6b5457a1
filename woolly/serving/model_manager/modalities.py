"""Input modalities of models."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from woolly.errors import RequestError
from woolly.llm.projector import describe_projector
from woolly.multimodal.processing.video import video_sampling
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.settings.table import Settings
from woolly.store import resolve


def configured_mmproj(path: Path, settings: Settings) -> str | None:
    """Return the --mmproj setting for a model file. A file applies to --model only, "none" to all models."""
    given = settings.mmproj
    if given is None or given == "none" or settings.model is None:
        return given
    return given if resolve(settings.model) == path else None


async def input_modalities(info: ModelInfo, settings: Settings, slot: ModelSlot | None) -> list[str]:
    """Return the input modalities of a model: text, image, audio.

    Uses the loaded model if there is one, otherwise the headers of its files.
    """
    if info.transcribes:
        return ["audio"]
    if info.kind != "completion":
        return ["text"]
    if slot is not None and slot.llm is not None:
        modalities = slot.llm.modalities
        own = () if modalities is None else (("image", modalities.vision), ("audio", modalities.audio))
        return ["text", *(name for name, its in own if its is not None)]
    found = await asyncio.to_thread(describe_projector, info.path, configured_mmproj(info.path, settings))
    return ["text", *(found.takes if found is not None else ())]


async def supports_video(info: ModelInfo, settings: Settings, slot: ModelSlot | None) -> bool:
    """Return True if a model supports video input in a known format."""
    if info.transcribes or info.kind != "completion":
        return False
    if slot is not None and slot.llm is not None:
        modalities = slot.llm.modalities
        tower, audio = (None, None) if modalities is None else (modalities.vision, modalities.audio)
    else:
        found = await asyncio.to_thread(describe_projector, info.path, configured_mmproj(info.path, settings))
        projector = None if found is None else found.settings
        tower, audio = (None, None) if projector is None else (projector.vision, projector.audio)
    if tower is None:
        return False
    try:
        video_sampling(tower, has_audio=audio is not None)
    except RequestError:
        return False
    return True


async def llama_server_model(info: ModelInfo, settings: Settings, slot: ModelSlot | None) -> dict[str, Any]:
    """Return a model in llama-server's format, in which its clients look for the vision capability."""
    takes_more = len(await input_modalities(info, settings, slot)) > 1
    capabilities = [*info.capabilities, *(["multimodal"] if takes_more else [])]
    return {"name": info.name, "model": info.name, "capabilities": capabilities}
