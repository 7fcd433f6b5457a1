"""Vision and audio settings of a projector (mmproj) file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.errors import UnsupportedError
from woolly.multimodal.audio.settings import AudioSettings, read_audio_settings
from woolly.multimodal.vision_settings import VisionSettings, check_projector, read_vision_settings


@dataclass(frozen=True)
class ProjectorSettings:
    """Vision settings, audio settings or both."""

    vision: VisionSettings | None
    audio: AudioSettings | None
    reason: str = ""  # reason for ignoring the other encoder of the file

    @property
    def kinds(self) -> str:
        """`clip.projector_type` of the encoders."""
        return " + ".join(one.projector for one in (self.vision, self.audio) if one is not None)


def read_projector(metadata: Mapping[str, Any]) -> ProjectorSettings:
    """Read the settings of a file's encoders; skip one unsupported encoder of two.

    Raise ModelError if none is supported.
    """
    check_projector(metadata)
    vision: VisionSettings | None = None
    audio: AudioSettings | None = None
    refused: list[UnsupportedError] = []
    if metadata.get("clip.has_vision_encoder") is True:
        try:
            vision = read_vision_settings(metadata)
        except UnsupportedError as error:
            refused.append(error)
    if metadata.get("clip.has_audio_encoder") is True:
        try:
            audio = read_audio_settings(metadata)
        except UnsupportedError as error:
            refused.append(error)
    if vision is None and audio is None:
        raise (
            refused[0]
            if refused
            else UnsupportedError(
                "the file has no image or audio encoder (clip.has_vision_encoder, clip.has_audio_encoder)"
            )
        )
    return ProjectorSettings(vision, audio, str(refused[0]) if refused else "")
