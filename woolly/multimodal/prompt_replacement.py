"""Text and placeholders that replace an image or audio clip in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from woolly import multimodal

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
    if isinstance(settings, multimodal.AudioSettings) and settings.family.filled:
        return PromptReplacement(
            _joined(part for i in range(len(prepared.inputs)) for part in _filled(prepared, i, settings))
        )
    if isinstance(settings, multimodal.AudioSettings):
        own = (
            Placeholder(prepared, i, 0, settings.merged_grid(one.grid_thw)[2]) for i, one in enumerate(prepared.inputs)
        )
        return PromptReplacement(_joined((settings.family.begin, *own, settings.family.end)))
    family = settings.family
    if settings.projector in _MARKED:
        parts = _MARKED[settings.projector](prepared, settings)
    elif settings.projector in _NUMBERED:
        parts = _NUMBERED[settings.projector](prepared, settings, index)
    elif settings.pinpoints:
        parts = _unpadded(prepared, settings)
    elif family.line_end:
        parts = [part for i in range(len(prepared.inputs)) for part in _lines(prepared, i, settings)]
    else:
        parts = [_whole(prepared, i, settings) for i in range(len(prepared.inputs))]
    return PromptReplacement(_joined((family.begin, *parts, family.end)))


def _filled(prepared: ProcessedItem, i: int, settings: AudioSettings) -> list[str | Placeholder]:
    """Gemma 3n: rows of an input, padded with the file's padding row, then the end row."""
    family, n = settings.family, settings.merged_grid(prepared.inputs[i].grid_thw)[2]
    own = [Placeholder(prepared, i, 0, n), *[Placeholder(prepared, i, n, 1)] * (family.filled - n)]
    return [family.begin, *own, Placeholder(prepared, i, n + 1, 1), family.end]


def _whole(prepared: ProcessedItem, i: int, settings: VisionSettings) -> Placeholder:
    """Return a placeholder for all rows of an input."""
    frames, height, width = grid = settings.merged_grid(prepared.inputs[i].grid_thw)
    family = settings.family
    n = frames * height * width
    frame_time = (i, prepared.frame_times[i]) if prepared.frame_times else None
    return Placeholder(
        prepared, i, 0, n, grid if family.has_mrope else None, family.is_bidirectional, frame_time=frame_time
    )


def _lines(prepared: ProcessedItem, i: int, settings: VisionSettings) -> list[str | Placeholder]:
    """Return a placeholder per line of rows, with text between lines."""
    _, height, width = settings.merged_grid(prepared.inputs[i].grid_thw)
    lines = [Placeholder(prepared, i, y * width, width) for y in range(height)]
    return [part for line in lines for part in (line, settings.family.line_end)][:-1]


def _unpadded(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """LLaVA 1.6: the overview, then lines across all tiles, without padding.

    Each line ends with the file's newline row, which is stored after the rows of an input.
    """
    _, side, _ = settings.merged_grid(prepared.inputs[0].grid_thw)
    high, wide = (one * side for one in prepared.tiles)
    height, width = prepared.size
    top = left = 0
    if width / height > wide / high:
        top = (high - int(round(height * (wide / width), 7))) // 2
    else:
        left = (wide - int(round(width * (high / height), 7))) // 2
    parts: list[str | Placeholder] = [_whole(prepared, 0, settings)]
    for y in range(top, high - top):
        for column in range(prepared.tiles[1]):
            first, last = max(left, column * side), min(wide - left, (column + 1) * side)
            if first < last:
                i = 1 + y // side * prepared.tiles[1] + column
                parts.append(Placeholder(prepared, i, y % side * side + first % side, last - first))
        parts.append(Placeholder(prepared, 0, side * side, 1))
    return parts


def _with_tile_marks(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """Idefics 3: tiles with row and column marks, then the overview; an untiled image is only an overview."""
    fence, overview = "<fake_token_around_image>", "<global-img>"
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for y in range(lines):
        for x in range(columns):
            parts += [f"{fence}<row_{y + 1}_col_{x + 1}>", _whole(prepared, y * columns + x, settings)]
        parts.append("\n")
    last = _whole(prepared, len(prepared.inputs) - 1, settings)
    return [*parts, "\n" * bool(lines), f"{fence}{overview}", last, fence]


def _with_numbered_tiles(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """LFM2-VL: tiles with row and column marks, then the overview; an untiled image has no marks."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for i in range(lines * columns):
        parts += [f"<|img_row_{i // columns + 1}_col_{i % columns + 1}|>", _whole(prepared, i, settings)]
    return [*parts, "<|img_thumbnail|>" * bool(lines), _whole(prepared, len(prepared.inputs) - 1, settings)]


def _with_separators(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """Llama 4: tiles with separators between columns and after each line, then the overview."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = []
    for i in range(lines * columns):
        is_last = i % columns == columns - 1
        parts += [_whole(prepared, i, settings), "<|tile_y_separator|>" if is_last else "<|tile_x_separator|>"]
    return [*parts, "<|image|>", _whole(prepared, len(prepared.inputs) - 1, settings)]


def _sliced(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """MiniCPM-V: image number, overview, then slices with a newline between lines."""
    lines, columns = prepared.tiles
    parts: list[str | Placeholder] = [f"<image_id>{index}</image_id><image>", _whole(prepared, 0, settings), "</image>"]
    for i in range(lines * columns):
        parts += ["\n" * (i > 0 and i % columns == 0) + "<slice>", _whole(prepared, i + 1, settings), "</slice>"]
    return parts


def _with_cells(prepared: ProcessedItem, settings: VisionSettings, index: int) -> list[str | Placeholder]:
    """Hunyuan VL: constant rows before and after the image, and at the end of each line."""
    _, height, width = settings.merged_grid(prepared.inputs[0].grid_thw)
    n = height * width
    parts: list[str | Placeholder] = [Placeholder(prepared, 0, n + 1, 1)]
    for y in range(height):
        parts.append(Placeholder(prepared, 0, y * width, width, cell=(y, 0, index)))
        parts.append(Placeholder(prepared, 0, n, 1, cell=(y, width, index)))
    return [*parts, Placeholder(prepared, 0, n + 2, 1)]


# Families whose placeholders or marks depend on the number of preceding images.
_NUMBERED = {"resampler": _sliced, "minicpmv4_6": _sliced, "hunyuanvl": _with_cells}


# Families with marks around tiles or rows.
def _with_end(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """Gemma 3n: all rows, then the end row of the file."""
    rows = _whole(prepared, 0, settings)
    return [rows, Placeholder(prepared, 0, rows.n, 1)]


def _with_lines_of_tiles(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """DeepSeek-OCR: lines across all tiles, then lines of the overview, each followed by the file's newline row.

    A separator row ends the image. Both constant rows are stored after the rows of an input.
    """
    lines, columns = prepared.tiles
    last = len(prepared.inputs) - 1
    _, height, width = settings.merged_grid(prepared.inputs[last].grid_thw)
    end = Placeholder(prepared, last, height * width, 1)
    parts: list[str | Placeholder] = []
    for i in range(lines):
        _, high, wide = settings.merged_grid(prepared.inputs[i * columns].grid_thw)
        for y in range(high):
            parts += [Placeholder(prepared, i * columns + x, y * wide, wide) for x in range(columns)]
            parts.append(end)
    for y in range(height):
        parts += [Placeholder(prepared, last, y * width, width), end]
    return [*parts, Placeholder(prepared, last, height * width + 1, 1)]


def _between_ends(prepared: ProcessedItem, settings: VisionSettings) -> list[str | Placeholder]:
    """CogVLM: all rows between two constant rows.

    Patch rows share one position; the last row has a separate position.
    """
    rows = _whole(prepared, 0, settings)
    first, last = (Placeholder(prepared, 0, rows.n + i, 1, uses_visual_expert=i == 0) for i in range(2))
    return [first, replace(rows, shares_position=True, uses_visual_expert=True), last]


_MARKED = {
    "cogvlm": _between_ends,
    "deepseekocr": _with_lines_of_tiles,
    "gemma3nv": _with_end,
    "idefics3": _with_tile_marks,
    "lfm2": _with_numbered_tiles,
    "llama4": _with_separators,
}


def _joined(parts: Iterable[str | Placeholder]) -> tuple[str | Placeholder, ...]:
    """Drop empty strings and join consecutive strings."""
    out: list[str | Placeholder] = []
    for part in parts:
        if isinstance(part, str) and out and isinstance(out[-1], str):
            out[-1] += part
        elif part:
            out.append(part)
    return tuple(out)
