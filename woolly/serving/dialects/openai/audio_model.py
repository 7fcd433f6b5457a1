"""Choice of the model that transcribes or translates audio."""

from __future__ import annotations

from fastapi import Request

from woolly.serving.errors import ApiError
from woolly.serving.model_manager.manager import ModelManager
from woolly.serving.model_manager.modalities import input_modalities
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.model_manager.resolver import RESERVED
from woolly.serving.observability.logs import ignore


async def find_audio_model(request: Request, name: str | None) -> tuple[str | None, bool]:
    """Return the name of the model that answers, and True if it is a speech-to-text model.

    The name of an available model is returned unchanged, and a short form completed. Without a name, for a name that
    clients have built in, such as whisper-1, or for any name if there is only one model, the loaded model or --model is
    used if it supports audio, else a speech-to-text model, else another audio model.
    """
    models: ModelManager = request.app.state.models
    name = None if name in RESERVED else name
    if name is not None:
        try:
            return name, (await models.get(name)).transcribes
        except ApiError as error:
            if error.code != "model_not_found" or request.app.state.settings.strict_models:
                return name, False
        if (whole := await models.resolver.long_form(name)) is not None:
            return whole, (await models.get(whole)).transcribes
        if not await models.resolver.may_replace(name):
            return name, False
    able = await _audio_models(request)
    if name is not None and models.main is None:  # for a replaced name, speech-to-text models only
        able = [one for one in able if one.transcribes]
    if not able:
        return name, False
    used = {slot.info.name: slot.last_used for slot in models.loaded_models if slot.state == "ready"}
    best = max(able, key=lambda one: (used.get(one.name, -1.0), one.name == models.main, *_rank(one)))
    if name is not None:
        ignore(f"model ({name[:60]} is not here; {best.name} answers)")
    return best.name, best.transcribes


def _rank(info: ModelInfo) -> tuple[bool, bool]:
    """Rank speech-to-text models above chat models, and Whisper, which also translates, above Parakeet."""
    return info.transcribes, info.architecture == "whisper"


async def check_takes_audio(request: Request, name: str | None) -> None:
    """Raise ApiError 400 if the model does not support audio; the message names available models with audio support."""
    settings = request.app.state.settings
    models: ModelManager = request.app.state.models
    info = await models.resolve(name)
    if "audio" in await input_modalities(info, settings, models.ready(info.name)):
        return
    able = [one.name for one in await _audio_models(request)]
    remedy = (
        "no available model does: pull a speech-to-text model with `woolly pull whisper:base`, or put a projector"
        " (mmproj file) for audio next to the model or name it with --mmproj"
    )
    raise ApiError(
        400,
        "wrong_model",
        f"{info.name} does not support audio",
        param="model",
        suggestion=f"use {', '.join(able[:4])}" if able else remedy,
    )


async def _audio_models(request: Request) -> list[ModelInfo]:
    """Return the audio models that the account may use."""
    settings = request.app.state.settings
    models: ModelManager = request.app.state.models
    found = [one for one in await models.list() if one.unsupported is None]
    return [one for one in found if "audio" in await input_modalities(one, settings, models.ready(one.name))]
