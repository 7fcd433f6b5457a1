"""AudioSettings: the `clip.audio.*` keys of a projector file (`mmproj`), and the table of audio projectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import text_of

if TYPE_CHECKING:
    from woolly.multimodal.processed_item import Modality


@dataclass(frozen=True)
class AudioProjector:
    """Family of audio encoders: text around the embeddings, and rows per chunk of mel frames."""

    begin: str = ""  # text before the embeddings
    end: str = ""
    # Placeholders in chat templates, longest first, which include the begin and end text.
    placeholder_texts: tuple[str, ...] = ()
    # Maps mel frames of a chunk and settings to rows.
    rows: Callable[[int, AudioSettings], int] = lambda n_frames, settings: n_frames // 4
    max_frames: int = 3000  # mel frames per chunk: 30 s
    # Fixed number of rows per chunk: each chunk is padded with the file's padding embedding, followed by the
    # end-of-audio embedding, and has begin and end text. 0: no padding.
    filled: int = 0
    needs_stack: bool = False  # the file needs projector.stack_factor
    needs_window: bool = False  # the file needs projector.window_size and projector.downsample_rate


def conv_length(n: int, times: int = 1) -> int:
    """Return the output length of `times` convolutions of stride 2."""
    for _ in range(times):
        n = (n + 1) // 2
    return n


_QWEN = ("<|audio_bos|>", "<|audio_eos|>", ("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"))

# Keyed by `clip.projector_type`. `woolly/multimodal/families/` has the encoders.
AUDIO_PROJECTORS: Mapping[str, AudioProjector] = {
    "ultravox": AudioProjector(
        placeholder_texts=("<|audio|>",), rows=lambda n, its: -(-conv_length(n) // its.stack), needs_stack=True
    ),
    "qwen2a": AudioProjector(*_QWEN),
    "voxtral": AudioProjector(
        "[BEGIN_AUDIO]",
        "",
        ("[BEGIN_AUDIO][AUDIO]", "[AUDIO]"),
        lambda n, its: n // 2 // its.stack,
        needs_stack=True,
    ),
    "qwen2.5o": AudioProjector(*_QWEN, lambda n, its: conv_length(n) // 2),
    "qwen3a": AudioProjector(
        "<|audio_start|>",
        "<|audio_end|>",
        ("<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>"),
        lambda n, its: n // 100 * 13 + conv_length(n % 100, 3),
        max_frames=800,
    ),
    "gemma4a": AudioProjector(
        "<|audio>", "<audio|>", ("<|audio|>",), lambda n, its: conv_length(n, 2), max_frames=2999
    ),
    "gemma3na": AudioProjector(
        "\n\n<start_of_audio>",
        "\n\n",
        ("<audio_soft_token>",),
        lambda n, its: conv_length(n, 4),
        max_frames=2997,
        filled=188,
    ),
    "lfm2a": AudioProjector(placeholder_texts=("<|audio|>",), rows=lambda n, its: conv_length(n, 3)),
    # Frames are pairs of 10 ms frames.
    "granite_speech": AudioProjector(
        placeholder_texts=("<|audio|>",), rows=lambda n, its: -(-n // its.window) * its.n_queries, needs_window=True
    ),
}


@dataclass(frozen=True)
class AudioSettings:
    """Audio parameters of a projector file."""

    kind: Modality
    projector: str  # `clip.projector_type`, a key of AUDIO_PROJECTORS
    n_mels: int  # mel bins
    stack: int = 1  # encoder rows per embedding
    window: int = 1  # encoder rows per Q-Former window
    n_queries: int = 1  # queries per window

    @property
    def family(self) -> AudioProjector:
        """Entry of AUDIO_PROJECTORS."""
        return AUDIO_PROJECTORS[self.projector]

    def merged_grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the grid of the encoder output, (1, 1, rows), for a chunk of this grid."""
        return 1, 1, self.family.rows(grid[2], self)


def read_audio_settings(metadata: Mapping[str, Any]) -> AudioSettings:
    """Read the audio settings from a file's metadata; raise ModelError or UnsupportedError if there are none."""
    if metadata.get("clip.has_audio_encoder") is not True:
        raise UnsupportedError("the file has no audio encoder (clip.has_audio_encoder)")
    projector = text_of(metadata, "clip.audio.projector_type") or text_of(metadata, "clip.projector_type")
    if projector not in AUDIO_PROJECTORS:
        raise UnsupportedError(
            f"audio projector type {projector!r:.60} is not supported; expected one of"
            f" {', '.join(sorted(AUDIO_PROJECTORS))}"
        )
    family = AUDIO_PROJECTORS[projector]
    window = _integer(metadata, "projector.window_size", 1, 512) if family.needs_window else 1
    return AudioSettings(
        kind="audio",
        projector=projector,
        n_mels=_integer(metadata, "num_mel_bins", 8, 512),
        stack=_integer(metadata, "projector.stack_factor", 1, 64) if family.needs_stack else 1,
        window=window,
        n_queries=window // (_integer(metadata, "projector.downsample_rate", 1, window) if family.needs_window else 1),
    )


def _integer(metadata: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = metadata.get(f"clip.audio.{name}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ModelError(f"metadata key clip.audio.{name} is {value!r:.60}; expected an integer from {least} to {most}")
    return value
