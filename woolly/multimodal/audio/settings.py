"""The AudioSettings: what a projector's file (`mmproj`) says of audio, by the `clip.audio.*` keys, and each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import text_of

if TYPE_CHECKING:
    from woolly.multimodal.prepared import Kind


@dataclass(frozen=True)
class AudioProjector:
    """One family of audio towers: the marks around its rows, and how many rows frames become."""

    begin: str = ""  # text before the rows of an audio clip, as the model's processor writes it
    end: str = ""
    # What chat templates write in place of an audio clip, longest first. The layout replaces it, marks and all.
    written: tuple[str, ...] = ()
    # By frames of a piece and what the file says.
    rows: Callable[[int, AudioSettings], int] = lambda n_frames, settings: n_frames // 4
    max_frames: int = 3000  # of a piece: 30 s
    # Rows of each piece, of which the last are the row of the tower's file that stands for none; then comes the one
    # that ends an audio clip, and each piece has marks of its own. 0: as many as there are.
    filled: int = 0
    needs_stack: bool = False  # the file must say how many rows of the encoder stand side by side
    needs_window: bool = False  # and how many are looked at together, by how many queries


def after_conv(n: int, times: int = 1) -> int:
    """Returns what convolutions of stride 2 leave of a number of frames."""
    for _ in range(times):
        n = (n + 1) // 2
    return n


_QWEN = ("<|audio_bos|>", "<|audio_eos|>", ("<|audio_bos|><|AUDIO|><|audio_eos|>", "<|AUDIO|>"))

# By `clip.projector_type`: the families that can be laid out. `woolly/models/towers/` has their files.
AUDIO_PROJECTORS: Mapping[str, AudioProjector] = {
    "ultravox": AudioProjector(
        written=("<|audio|>",), rows=lambda n, its: -(-after_conv(n) // its.stack), needs_stack=True
    ),
    "qwen2a": AudioProjector(*_QWEN),
    "voxtral": AudioProjector(
        "[BEGIN_AUDIO]",
        "",
        ("[BEGIN_AUDIO][AUDIO]", "[AUDIO]"),
        lambda n, its: n // 2 // its.stack,
        needs_stack=True,
    ),
    "qwen2.5o": AudioProjector(*_QWEN, lambda n, its: after_conv(n) // 2),
    "qwen3a": AudioProjector(
        "<|audio_start|>",
        "<|audio_end|>",
        ("<|audio_start|><|audio_pad|><|audio_end|>", "<|audio_pad|>"),
        lambda n, its: n // 100 * 13 + after_conv(n % 100, 3),
        max_frames=800,
    ),
    "gemma4a": AudioProjector("<|audio>", "<audio|>", ("<|audio|>",), lambda n, its: after_conv(n, 2), max_frames=2999),
    "gemma3na": AudioProjector(
        "\n\n<start_of_audio>",
        "\n\n",
        ("<audio_soft_token>",),
        lambda n, its: after_conv(n, 4),
        max_frames=2997,
        filled=188,
    ),
    "lfm2a": AudioProjector(written=("<|audio|>",), rows=lambda n, its: after_conv(n, 3)),
    # Its frames are two of 10 ms side by side.
    "granite_speech": AudioProjector(
        written=("<|audio|>",), rows=lambda n, its: -(-n // its.window) * its.n_queries, needs_window=True
    ),
}


@dataclass(frozen=True)
class AudioSettings:
    """Audio parameters of a projector file."""

    kind: Kind
    projector: str  # `clip.projector_type`, a key of AUDIO_PROJECTORS
    n_mels: int  # numbers of a frame
    stack: int = 1  # rows of the encoder that make one
    window: int = 1  # rows of the encoder that are looked at together
    n_queries: int = 1  # that look at a window

    @property
    def family(self) -> AudioProjector:
        """The row of the table of listeners."""
        return AUDIO_PROJECTORS[self.projector]

    def row_grid(self, grid: tuple[int, int, int]) -> tuple[int, int, int]:
        """Frames, height and width of the rows that a tower makes of a piece of this grid: they are a line."""
        return 1, 1, self.family.rows(grid[2], self)


def read_audio_settings(metadata: Mapping[str, Any]) -> AudioSettings:
    """The settings of the audio tower in a file's metadata; ModelError or UnsupportedError if there is none."""
    if metadata.get("clip.has_audio_encoder") is not True:
        raise UnsupportedError("the file holds no audio encoder (clip.has_audio_encoder)")
    projector = text_of(metadata, "clip.audio.projector_type") or text_of(metadata, "clip.projector_type")
    if projector not in AUDIO_PROJECTORS:
        raise UnsupportedError(
            f"the projector type {projector!r:.60} for audio is not supported yet; these are:"
            f" {', '.join(sorted(AUDIO_PROJECTORS))}"
        )
    family = AUDIO_PROJECTORS[projector]
    window = _whole(metadata, "projector.window_size", 1, 512) if family.needs_window else 1
    return AudioSettings(
        kind="audio",
        projector=projector,
        n_mels=_whole(metadata, "num_mel_bins", 8, 512),
        stack=_whole(metadata, "projector.stack_factor", 1, 64) if family.needs_stack else 1,
        window=window,
        n_queries=window // (_whole(metadata, "projector.downsample_rate", 1, window) if family.needs_window else 1),
    )


def _whole(metadata: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = metadata.get(f"clip.audio.{name}")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ModelError(
            f"metadata key clip.audio.{name} is {value!r:.60}; a whole number from {least} to {most} was expected"
        )
    return value
