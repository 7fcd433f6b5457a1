"""Text and placeholders that replace an image or audio clip in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.multimodal.audio.settings import AudioSettings
    from woolly.multimodal.processed_item import ProcessedItem
    from woolly.multimodal.vision_settings import VisionSettings


@dataclass(frozen=True, eq=False)
class Placeholder:
    """Placeholder for encoder rows of an input, in place of tokens."""

    source: ProcessedItem
    index: int  # index in `source.inputs`
    first: int  # first row of the input
    n: int
    # Frames, height and width of all rows of the input, for M-RoPE; the text continues after the maximum position. None
    # if rows have token positions.
    grid_thw: tuple[int, int, int] | None = None
    is_bidirectional: bool = False  # bidirectional attention within the rows
    # Row, first column and number of the image, for XD-RoPE.
    cell: tuple[int, int, int] | None = None
    # Frame number and time position in a video. Rows and columns of all frames start at the position of the first
    # frame; the text continues after the maximum position.
    frame_time: tuple[int, int] | None = None
    shares_position: bool = False  # all rows share one position, like a single token
    uses_visual_expert: bool = False  # the text model has separate weights for these rows


# Prompt of the engine: tokens and placeholders.
Prompt = tuple[int | Placeholder, ...]


@dataclass(frozen=True)
class PromptReplacement:
    """Strings and placeholders in order. Strings are special tokens of the vocabulary, or plain text."""

    parts: tuple[str | Placeholder, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all inputs."""
        return sum(part.n for part in self.parts if isinstance(part, Placeholder))


def encode_prompt(parts: Iterable[str | Placeholder], encode: Callable[[str], Sequence[int]]) -> Prompt:
    """Return tokens and placeholders. `encode` parses special tokens and adds none.

    Pass all parts in a single call: consecutive strings are joined before encoding, because a tokenizer may merge their
    characters.
    """
    out: list[int | Placeholder] = []
    for part in _joined(parts):
        out.extend(encode(part) if isinstance(part, str) else [part])
    return tuple(out)


def make_replacement(
    prepared: ProcessedItem, settings: VisionSettings | AudioSettings, index: int = 0
) -> PromptReplacement:
    """Return the replacement of an image or audio clip in a prompt. `index` is the number of images before it."""
    own = settings.prompt_parts(prepared, index)
    return PromptReplacement(_joined((settings.family.begin, *own, settings.family.end)))


def all_inputs(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Return a placeholder for each input of an image."""
    return [input_rows(prepared, i, settings) for i in range(len(prepared.inputs))]


def all_chunks(prepared: ProcessedItem, settings: AudioSettings) -> list[str | Placeholder]:
    """Return a placeholder for each chunk of an audio clip."""
    return [Placeholder(prepared, i, 0, settings.merged_grid(x.grid_thw)[2]) for i, x in enumerate(prepared.inputs)]


def input_rows(prepared: ProcessedItem, i: int, settings: VisionSettings) -> Placeholder:
    """Return a placeholder for all rows of input `i` of an image."""
    frames, height, width = grid = settings.merged_grid(prepared.inputs[i].grid_thw)
    family = settings.family
    n = frames * height * width
    frame_time = (i, prepared.frame_times[i]) if prepared.frame_times else None
    return Placeholder(
        prepared, i, 0, n, grid if family.has_mrope else None, family.is_bidirectional, frame_time=frame_time
    )


def _joined(parts: Iterable[str | Placeholder]) -> tuple[str | Placeholder, ...]:
    """Drop empty strings and join consecutive strings."""
    out: list[str | Placeholder] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part:
            out.append(part)
    return tuple(out)
