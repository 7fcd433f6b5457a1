"""The Halves: the towers that a projector's file holds, one for pictures, one for sound, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.errors import UnsupportedError
from woolly.multimodal.ears import EarSettings, read_ears
from woolly.multimodal.settings import TowerSettings, check_projector, read_settings


@dataclass(frozen=True)
class Halves:
    """What a file's towers read. At least one is there."""

    sight: TowerSettings | None
    ears: EarSettings | None
    reason: str = ""  # why the other of two is not used

    @property
    def kinds(self) -> str:
        """The families, as `clip.projector_type` names them."""
        return " + ".join(one.projector for one in (self.sight, self.ears) if one is not None)


def read_halves(metadata: Mapping[str, Any]) -> Halves:
    """The towers in a file's metadata; a family that is not supported leaves the other. ModelError if there is none."""
    check_projector(metadata)
    sight: TowerSettings | None = None
    ears: EarSettings | None = None
    refused: list[UnsupportedError] = []
    if metadata.get("clip.has_vision_encoder") is True:
        try:
            sight = read_settings(metadata)
        except UnsupportedError as error:
            refused.append(error)
    if metadata.get("clip.has_audio_encoder") is True:
        try:
            ears = read_ears(metadata)
        except UnsupportedError as error:
            refused.append(error)
    if sight is None and ears is None:
        raise (
            refused[0]
            if refused
            else UnsupportedError(
                "the file holds no tower for pictures or sound (clip.has_vision_encoder, clip.has_audio_encoder)"
            )
        )
    return Halves(sight, ears, str(refused[0]) if refused else "")
