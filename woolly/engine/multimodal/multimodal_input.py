"""Multimodal input of a request: placeholder ranges, M-RoPE positions, attention ranges and cache keys."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from woolly.multimodal import Placeholder, Prompt

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Key = tuple[bytes, int]  # digest of an image or audio clip, and index of its encoder input

FILLER = 0  # token id at placeholder positions


@dataclass(frozen=True, eq=False)
class PlaceholderRange:
    """Rows of an encoder input, starting at a prompt position."""

    first: int
    placeholder: Placeholder

    @property
    def last(self) -> int:
        """Position after the last row."""
        return self.first + self.placeholder.n

    @property
    def key(self) -> Key:
        """Cache key of the encoder output."""
        return self.placeholder.source.digest, self.placeholder.index


@dataclass(eq=False)
class MultimodalInput:
    """Multimodal input of a request. `embeddings` holds computed encoder outputs until they are used."""

    n_prompt: int
    placeholders: tuple[PlaceholderRange, ...]
    # M-RoPE positions [n_axes, n_prompt]; None if equal to token positions. Axes: frame, line, column (M-RoPE), or
    # position, column, line, image number (XD-RoPE).
    mrope_positions: Int32 | None
    identity: bytes  # digest of the encoder
    n_source: int = 0  # number of leading encoder rows, which the decoder reads by cross-attention
    source_ids: tuple[int, ...] = ()  # tokens of the encoder prompt
    embeddings: dict[Key, Float32] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._firsts = [place.first for place in self.placeholders]

    @property
    def mrope_delta(self) -> int:
        """Offset of M-RoPE positions after the prompt, where an image spans fewer positions than rows."""
        return 0 if self.mrope_positions is None else int(self.mrope_positions[:, -1].max()) + 1 - self.n_prompt

    def overlapping(self, first: int, last: int) -> tuple[PlaceholderRange, ...]:
        """Return the placeholder ranges that overlap positions `first` to `last`."""
        begin = max(0, bisect_right(self._firsts, first) - 1)
        return tuple(place for place in self.placeholders[begin:] if place.first < last and place.last > first)

    def next_missing(self, first: int) -> PlaceholderRange | None:
        """Return the next placeholder range without embeddings from position `first`, or None."""
        return next(iter(self.missing(first)), None)

    def missing(self, first: int) -> list[PlaceholderRange]:
        """Return the placeholder ranges without embeddings from position `first`."""
        return [place for place in self.overlapping(first, self.n_prompt) if place.key not in self.embeddings]

    def computable_end(self, first: int, last: int) -> int:
        """Return the end of the positions that one step can compute from `first`, at most `last`.

        The range stops before missing embeddings and never splits rows with bidirectional attention.
        """
        for place in self.overlapping(first, last):
            is_cut = place.placeholder.is_bidirectional and place.last > last
            if place.key not in self.embeddings or is_cut:
                return max(first, place.first)
        return last

    def bidirectional_end(self, first: int) -> int:
        """Return the end of the bidirectional range at `first`, or `first` if there is none."""
        found = [p for p in self.overlapping(first, first + 1) if p.placeholder.is_bidirectional]
        return found[0].last if found else first

    def embeddings_in(self, first: int, last: int) -> tuple[list[int], list[Float32]]:
        """Return the positions with embeddings, relative to `first`, and the embeddings."""
        at: list[int] = []
        rows: list[Float32] = []
        for place in self.overlapping(first, last):
            begin, end = max(first, place.first), min(last, place.last)
            at += range(begin - first, end - first)
            from_ = place.placeholder.first - place.first
            rows.append(self.embeddings[place.key][begin + from_ : end + from_])
        return at, rows

    def visual_mask(self, first: int, last: int) -> Int32:
        """Return an array [last - first] with 1 for rows that use the visual expert's weights, otherwise 0."""
        out = np.zeros(last - first, np.int32)
        for place in self.overlapping(first, last):
            if place.placeholder.uses_visual_expert:
                out[max(0, place.first - first) : place.last - first] = 1
        return out

    def rope_positions(self, first: int, last: int) -> Int32:
        """Return the M-RoPE positions [n_axes, last - first], including generated tokens."""
        after = np.arange(max(first, self.n_prompt), last, dtype=np.int32) + self.mrope_delta
        if self.mrope_positions is None or first >= self.n_prompt:
            own = after if first >= self.n_prompt else np.arange(first, last, dtype=np.int32)
            return np.tile(own, (self.n_axes, 1))
        return np.concatenate([self.mrope_positions[:, first:last], np.tile(after, (self.n_axes, 1))], axis=1)

    @property
    def n_axes(self) -> int:
        """Number of M-RoPE axes."""
        return 3 if self.mrope_positions is None else len(self.mrope_positions)

    def attention_ranges(self, first: int, last: int) -> Int32 | None:
        """Return the attention ranges [last - first, 2], or None if all rows are causal."""
        if self.n_source:
            positions = np.arange(first, last, dtype=np.int32)
            return np.stack([np.minimum(positions, self.n_source), positions + 1], axis=1)
        places = [place for place in self.overlapping(first, last) if place.placeholder.is_bidirectional]
        if not places:
            return None
        positions = np.arange(first, last, dtype=np.int32)
        out = np.stack([positions, positions + 1], axis=1)
        for place in places:
            out[max(0, place.first - first) : place.last - first] = place.first, place.last
        return out

    def cache_tokens(self, tokens: Sequence[int], first: int) -> tuple[list[int], bytes]:
        """Return the tokens with fillers replaced by numbers, and bytes that identify the embedding rows.

        The numbers are for reports and may collide. Page digests cover the bytes.
        """
        out, extra = list(tokens), b""
        for place in self.overlapping(first, first + len(out)):
            begin, end = max(first, place.first), min(first + len(out), place.last)
            row = place.placeholder.first + begin - place.first
            name = self._digest(place)
            extra += struct.pack("<III", begin - first, end - first, row) + name
            number = int.from_bytes(name[:4], "little") & 0x7FFF0000
            out[begin - first : end - first] = [-1 - (number | (row + i) & 0xFFFF) for i in range(end - begin)]
        return out, extra

    def _digest(self, place: PlaceholderRange) -> bytes:
        """Return the digest of an encoder input and the encoder."""
        digest, index = place.key
        return hashlib.blake2b(digest + struct.pack("<I", index) + self.identity, digest_size=20).digest()


def has_placeholders(prompt: Sequence[int] | Prompt) -> TypeGuard[Prompt]:
    """True if the prompt has placeholders."""
    return any(isinstance(part, Placeholder) for part in prompt)


def read_prompt(prompt: Prompt, identity: bytes, *, is_source: bool = False) -> tuple[list[int], MultimodalInput]:
    """Return the tokens of a prompt, with fillers, and its multimodal input.

    `is_source`: the prompt begins with encoder rows.
    """
    tokens: list[int] = []
    places: list[PlaceholderRange] = []
    rope_positions: list[Int32] = []
    at = begun = 0  # M-RoPE position of the next token, and of the first row of the latest image
    n_axes = 4 if any(isinstance(part, Placeholder) and part.cell is not None for part in prompt) else 3
    for part in prompt:
        if not isinstance(part, Placeholder):
            tokens.append(part)
            rope_positions.append(np.full((n_axes, 1), at, np.int32))
            at += 1
            continue
        places.append(PlaceholderRange(len(tokens), part))
        tokens += [FILLER] * part.n
        if part.cell is not None:
            rope_positions.append(_cells(part, at))
            at += part.n
            continue
        own = _turns(part, n_axes)
        begun = begun if part.frame_time is not None and part.frame_time[0] > 0 else at
        rope_positions.append(own + begun)
        at = max(at, begun + int(own.max()) + 1)
    has_grid = any(
        one.grid_thw is not None or one.cell is not None or one.shares_position
        for one in (p.placeholder for p in places)
    )
    joined = np.concatenate(rope_positions, axis=1).astype(np.int32) if has_grid else None
    return tokens, MultimodalInput(len(tokens), tuple(places), joined, identity, places[0].last if is_source else 0)


def _cells(rows: Placeholder, at: int) -> Int32:
    """Return the position, column, line and image number of each row as an array [4, n]."""
    assert rows.cell is not None
    (line, column, image), ones = rows.cell, np.ones(rows.n, np.int32)
    along = np.arange(rows.n, dtype=np.int32)
    return np.stack([at + along, column + along, line * ones, image * ones]).astype(np.int32)


def _turns(rows: Placeholder, n_axes: int) -> Int32:
    """Return the M-RoPE positions [n_axes, n] of the rows, relative to the image; 0 for rows that share a position."""
    numbers = np.arange(rows.first, rows.first + rows.n, dtype=np.int32)
    if rows.shares_position:
        return np.zeros((n_axes, rows.n), np.int32)
    if rows.grid_thw is None:
        return np.tile(numbers - rows.first, (n_axes, 1))
    _, height, width = rows.grid_thw
    frames = numbers // (height * width) if rows.frame_time is None else np.full(rows.n, rows.frame_time[1])
    return np.stack([frames, numbers // width % height, numbers % width]).astype(np.int32)
