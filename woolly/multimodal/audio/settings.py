"""AudioSettings: the `clip.audio.*` keys of a projector file (`mmproj`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import text_of
from woolly.multimodal.registry import audio_families, find_audio_family

if TYPE_CHECKING:
    from woolly.multimodal.family import AudioFamily
    from woolly.multimodal.processed_item import Modality, ProcessedItem
    from woolly.multimodal.prompt_replacement import Placeholder


def conv_length(n: int, times: int = 1) -> int:
    """Return the output length of `times` convolutions of stride 2."""
    for _ in range(times):
        n = (n + 1) // 2
    return n


@dataclass(frozen=True)
class AudioSettings:
    """Audio parameters of a projector file."""

    kind: Modality
    projector: str  # `clip.projector_type`
    n_mels: int  # mel bins, or samples of a frame
    stack: int = 1  # encoder rows per embedding
    window: int = 1  # encoder rows per Q-Former window
    n_queries: int = 1  # queries per window
    own_family: AudioFamily | None = None  # of an encoder in the model's file

    @property
    def family(self) -> AudioFamily:
        """Row of the family."""
        found = self.own_family or find_audio_family(self.projector)
        if found is None:
            raise _unknown(self.projector)
        return found

    def prompt_parts(self, prepared: ProcessedItem, index: int) -> list[str | Placeholder]:
        """Return text and placeholders of an audio clip, without begin and end."""
        return self.family.parts(prepared, self)

    def merged_grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the grid of the encoder output, (1, 1, rows), for a chunk of this grid."""
        return 1, 1, self.family.rows(grid[2], self)


def read_audio_settings(metadata: Mapping[str, Any]) -> AudioSettings:
    """Read the audio settings from a file's metadata; raise ModelError or UnsupportedError if there are none."""
    if metadata.get("clip.has_audio_encoder") is not True:
        raise UnsupportedError("the file has no audio encoder (clip.has_audio_encoder)")
    projector = text_of(metadata, "clip.audio.projector_type") or text_of(metadata, "clip.projector_type")
    family = find_audio_family(projector)
    if family is None:
        raise _unknown(projector)
    window = _integer(metadata, "projector.window_size", 1, 512) if family.needs_window else 1
    return AudioSettings(
        kind="audio",
        projector=projector,
        n_mels=family.frame_size or _integer(metadata, "num_mel_bins", 8, 512),
        stack=_integer(metadata, "projector.stack_factor", 1, 64) if family.needs_stack else 1,
        window=window,
        n_queries=window // (_integer(metadata, "projector.downsample_rate", 1, window) if family.needs_window else 1),
    )


def _unknown(projector: str) -> UnsupportedError:
    known = ", ".join(audio_families())
    return UnsupportedError(f"audio projector type {projector!r:.60} is not supported; expected one of {known}")


def _integer(metadata: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = metadata.get(f"clip.audio.{name}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ModelError(f"metadata key clip.audio.{name} is {value!r:.60}; expected an integer from {least} to {most}")
    return value
