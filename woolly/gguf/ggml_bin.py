"""Reader of ggml's file format before GGUF, still used by whisper.cpp's models (`ggml-base.en.bin`).

Sizes, tokens and tensors follow each other without alignment. `whisper_bin.py` and `parakeet_bin.py` read the sizes of
the two kinds of models. Tensors stay mapped; unaligned f32 tensors are copied on first read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from woolly.gguf.cursor import Cursor, quote
from woolly.gguf.mapped_file import FileMap, LazyMap, MemoryMap
from woolly.gguf.metadata import Entry, Metadata, read_entry
from woolly.gguf.tensor import Tensor
from woolly.gguf.values import ValueType, encode_value
from woolly.quant.types import GGMLType

Values = Mapping[str, tuple[Any, ValueType | None]]

MAX_MELS = 512  # filters of a spectrogram; published models have 80 or 128
_MAGIC = b"lmgg"  # 0x67676d6c, little-endian
_MAX_TENSORS = 1 << 13
_MAX_TEXT_BYTES = 1 << 20  # total size of tokens; Whisper's tokens take 0.5 MB


def is_ggml_bin(file: FileMap) -> bool:
    """Return True if a file has the magic bytes of ggml's old format."""
    return file.bytes[:4].tobytes() == _MAGIC


def read_floats(cursor: Cursor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Read an f32 tensor without a header."""
    start = cursor.skip(4 * math.prod(shape), name)
    return aligned(Tensor(name, GGMLType.F32, shape, start, cursor.map))


def read_texts(cursor: Cursor, least: int, most: int) -> list[bytes]:
    """Read the tokens: their count, then each token with its length."""
    at = cursor.offset
    count = cursor.u32("the number of tokens")
    if not least <= count <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise cursor.error(f"expected {expected} tokens, found {count}", at)
    out: list[bytes] = []
    data, begin = cursor.bytes[cursor.offset : cursor.offset + _MAX_TEXT_BYTES].tobytes(), 0
    for index in range(count):
        start = begin + 4
        end = start + int.from_bytes(data[begin:start], "little")
        if end > len(data):
            raise cursor.error(f"expected token {index} of {count} within the first MB of tokens", at)
        out.append(data[start:end])
        begin = end
    cursor.skip(begin, "the tokens")
    return out


def token_list(texts: list[str]) -> bytearray:
    """Return strings as a GGUF string array."""
    out = bytearray(struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(texts)))
    for text in texts:
        data = text.encode("utf-8", "surrogateescape")
        out += struct.pack("<Q", len(data))
        out += data
    return out


def read_tensors(
    cursor: Cursor, name_of: Callable[[str], str | None], placed: Callable[[Tensor], Tensor], min_dimensions: int = 1
) -> dict[str, Tensor]:
    """Read all tensors up to the end of the file. `name_of` returns the GGUF name, or None to skip a tensor."""
    tensors: dict[str, Tensor] = {}
    n_read = 0
    while cursor.offset < cursor.n_bytes:
        at = cursor.offset
        n_dimensions, length, number = (cursor.u32(what) for what in ("the dimensions", "the length", "the type"))
        n_read += 1
        if not min_dimensions <= n_dimensions <= 4 or length > 256 or n_read > _MAX_TENSORS:
            raise cursor.error("expected a tensor of up to 4 dimensions with a name of up to 256 bytes", at)
        shape = tuple(cursor.u32("a dimension") for _ in range(n_dimensions))[::-1] or (1,)
        start = cursor.skip(length, "a name")
        own = cursor.bytes[start : cursor.offset].tobytes().decode("utf-8", "replace")
        try:
            type = GGMLType(number)
        except ValueError:
            raise cursor.error(f"expected a known ggml type for tensor {quote(own)}, found {number}", at) from None
        if not 0 < math.prod(shape) < 1 << 40 or shape[-1] % type.block_size != 0:
            raise cursor.error(f"expected dimensions of tensor {quote(own)} that fit its type, found {shape}", at)
        name = name_of(own)
        if name in tensors:
            raise cursor.error(f"expected every tensor once, found {quote(own)} again", at)
        tensor = Tensor(name or own, type, shape, cursor.offset, cursor.map)
        cursor.skip(tensor.n_bytes, f"tensor {quote(own)}")
        if name is not None:
            tensors[name] = placed(tensor)
    return tensors


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor with 4-byte alignment, as kernels need: mapped, or copied on first read."""
    if tensor.type is not GGMLType.F32 or tensor.offset % 4 == 0:
        return tensor
    return replace(tensor, offset=0, file=LazyMap(tensor.file, tensor.n_bytes, tensor.dequantize))


def metadata_of(file: FileMap, values: Values, tokens: bytearray) -> Metadata:
    """Return the values as in-memory metadata."""
    encoded: dict[str, bytes | bytearray] = {key: encode_value(value, type) for key, (value, type) in values.items()}
    encoded["tokenizer.ggml.tokens"] = tokens
    memory = MemoryMap(str(file.path), np.frombuffer(b"".join(encoded.values()), np.uint8))
    cursor = Cursor(memory)
    entries: dict[str, Entry] = {key: read_entry(cursor) for key in encoded}
    return Metadata(memory, entries)
