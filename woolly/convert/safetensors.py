"""Reader of safetensors files: a JSON header, then memory-mapped tensor data."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.json_files import parse_json
from woolly.errors import GGUFError, ModelError
from woolly.gguf.mapped_file import FileMap

# NumPy has no BF16 or FP8, so their bits are stored as integers.
STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_MAX_HEADER_BYTES = 100 << 20
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 1 << 48


@dataclass(frozen=True)
class StoredTensor:
    """Tensor of a safetensors file."""

    name: str
    dtype: str  # key of STORED
    shape: tuple[int, ...]
    offset: int  # offset of the data in the file
    file: FileMap = field(repr=False, compare=False)

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * STORED[self.dtype].itemsize

    def array(self) -> NDArray[Any]:
        """Return a read-only view into the file. BF16 and FP8 are integers."""
        data = self.file.bytes[self.offset : self.offset + self.n_bytes]
        if self.offset % STORED[self.dtype].itemsize:  # rare: a header of odd length
            data = data.copy()
        return data.view(STORED[self.dtype]).reshape(self.shape)


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name. Raise ModelError for an invalid header."""
    try:
        file = FileMap(path)
    except GGUFError as error:
        reason = str(error).replace("a GGUF file", "a safetensors file").partition("; expected the magic")[0]
        raise ModelError(reason) from None
    if file.n_bytes < 8:
        raise ModelError(f"{path}: not a safetensors file: it has only {file.n_bytes} bytes")
    (length,) = struct.unpack("<Q", file.bytes[:8].tobytes())
    if length > min(file.n_bytes - 8, _MAX_HEADER_BYTES):
        raise ModelError(
            f"{path}: the header has {length} bytes, but the file only {file.n_bytes}: it is truncated or not a"
            " safetensors file"
        )
    header = parse_json(file.bytes[8 : 8 + length].tobytes(), f"{path}: the header")
    start, found = 8 + length, {}
    for name, entry in header.items():
        if name != "__metadata__":
            found[name] = _stored(path, file, start, name, entry)
    in_order = sorted((one for one in found.values() if one.n_bytes), key=lambda one: one.offset)
    for first, second in itertools.pairwise(in_order):
        if first.offset + first.n_bytes > second.offset:
            raise ModelError(f"{path}: tensors {first.name!r:.90} and {second.name!r:.90} overlap")
    return found


def _stored(path: Path, file: FileMap, start: int, name: str, entry: Any) -> StoredTensor:
    """Validate an entry of a header."""
    where = f"{path}: tensor {name!r:.90}"
    if not name.isprintable():
        raise ModelError(f"{path}: the name {name!r:.90} of a tensor is not printable")
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: expected type, shape and offsets, found {type(entry).__name__}")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    place: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in STORED:
        raise ModelError(f"{where}: the type {dtype!r:.40} is unknown; expected one of {', '.join(STORED)}")
    if not _are_whole(shape) or len(shape) > _MAX_DIMENSIONS or math.prod(shape) > _MAX_ELEMENTS:
        raise ModelError(f"{where}: expected a shape of at most {_MAX_DIMENSIONS} numbers, found {shape!r:.60}")
    if not _are_whole(place) or len(place) != 2:
        raise ModelError(f"{where}: expected two data_offsets, found {place!r:.60}")
    n_bytes = math.prod(shape) * STORED[dtype].itemsize
    if place[1] - place[0] != n_bytes or start + place[1] > file.n_bytes:
        raise ModelError(
            f"{where}: {dtype} of shape {tuple(shape)} takes {n_bytes} bytes, but the header places it in bytes"
            f" {place[0]} to {place[1]} of {file.n_bytes - start}"
        )
    return StoredTensor(name, dtype, tuple(shape), start + place[0], file)


def _are_whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 1 << 62 for one in values)
