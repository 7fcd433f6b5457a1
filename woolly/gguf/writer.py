"""GGUF writer."""

from __future__ import annotations

import errno
import math
import os
import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from woolly.errors import GGUFError
from woolly.gguf.header import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMENSIONS,
    MAX_ENTRIES,
    MAX_NAME,
    MAX_NAMES,
    MAX_TENSORS,
)
from woolly.gguf.values import ValueType, encode_string, encode_value
from woolly.quant.encode import quantize
from woolly.quant.types import GGMLType

if TYPE_CHECKING:
    from woolly.gguf.reader import GGUFFile


@dataclass(frozen=True)
class _Tensor:
    name: str
    type: GGMLType
    shape: tuple[int, ...]
    n_bytes: int
    parts: Callable[[], Iterable[NDArray[np.uint8]]]  # data of the tensor, in order


class GGUFWriter:
    """Collects metadata and tensors in order, and writes them to one file."""

    def __init__(self, path: str | os.PathLike[str], *, version: int = 3, alignment: int = DEFAULT_ALIGNMENT) -> None:
        if version not in (2, 3):
            raise GGUFError(f"expected GGUF version 2 or 3, found {version}")
        self.path = Path(path)
        self.version = version
        self.alignment = _checked_alignment(alignment)
        self._values: dict[str, bytes | memoryview] = {}  # encoded, type tag first
        self._tensors: dict[str, _Tensor] = {}

    def add(self, key: str, value: Any, type: ValueType | None = None) -> None:
        """Add a metadata value.

        The default type of an integer is the first of UINT32, INT32, UINT64 and INT64 that can store it. Other numbers
        are FLOAT32, and NumPy values keep their type. For a sequence, `type` is the element type.
        """
        try:
            encoded = encode_value(value, type)
        except GGUFError as error:
            raise GGUFError(f"{self.path}: key {key!r}: {error}") from None
        if key == ALIGNMENT_KEY:
            encoded = encode_value(_checked_alignment(value), ValueType.UINT32)
            self.alignment = int(value)
        self.add_raw(key, encoded)

    def add_raw(self, key: str, data: bytes | NDArray[np.uint8]) -> None:
        """Add a metadata value as returned by `Metadata.raw`."""
        _check_name(self.path, "key", key)
        if key in self._values:
            raise GGUFError(f"{self.path}: expected every key once, found {key!r} again")
        self._values[key] = data.data if isinstance(data, np.ndarray) else data

    def add_tensor(self, name: str, array: NDArray[Any], type: GGMLType | None = None) -> None:
        """Add a tensor of numbers, stored as `type`. The default is F16 for float16 arrays and F32 for other floats."""
        if array.dtype.kind != "f":
            raise GGUFError(f"{self.path}: tensor {name!r}: expected an array of floats, found {array.dtype}")
        if type is None:
            type = GGMLType.F16 if array.dtype == np.float16 else GGMLType.F32
        try:
            data = quantize(array, type) if array.ndim else quantize(array.reshape(1), type)
        except GGUFError as error:
            raise GGUFError(f"{self.path}: tensor {name!r}: {error}") from None
        self.add_raw_tensor(name, type, array.shape, data)

    def add_raw_tensor(self, name: str, type: GGMLType, shape: Sequence[int], data: bytes | NDArray[np.uint8]) -> None:
        """Add an encoded tensor. The array is not copied, but referenced until `write`."""
        flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1)
        tensor = self._describe(name, type, shape, lambda: (flat,))
        if flat.dtype != np.uint8 or flat.size != tensor.n_bytes:
            raise GGUFError(
                f"{self.path}: tensor {name!r}: expected {tensor.n_bytes} bytes for {type.name} of shape "
                f"{tensor.shape}, found {flat.size} of {flat.dtype}"
            )
        self._tensors[name] = tensor

    def add_streamed_tensor(
        self, name: str, type: GGMLType, shape: Sequence[int], parts: Callable[[], Iterable[NDArray[np.uint8]]]
    ) -> None:
        """Add a tensor that is generated in parts while the file is written. `write` calls `parts`."""
        self._tensors[name] = self._describe(name, type, shape, parts)

    def n_bytes(self) -> int:
        """Size of the file that `write` will create, with a padded end."""
        size = 24 + sum(len(encode_string(key)) + len(data) for key, data in self._all_values().items())
        size += sum(len(encode_string(t.name)) + 4 + 8 * len(t.shape) + 12 for t in self._tensors.values())
        for tensor in self._tensors.values():
            size += -size % self.alignment + tensor.n_bytes
        return size + (-size % self.alignment if self._tensors else 0)

    def _describe(
        self, name: str, type: GGMLType, shape: Sequence[int], parts: Callable[[], Iterable[NDArray[np.uint8]]]
    ) -> _Tensor:
        _check_name(self.path, "tensor", name)
        if name in self._tensors:
            raise GGUFError(f"{self.path}: expected every tensor once, found {name!r} again")
        shape = tuple(int(size) for size in shape)
        if len(shape) > MAX_DIMENSIONS or any(size < 1 for size in shape):
            raise GGUFError(
                f"{self.path}: tensor {name!r}: expected at most {MAX_DIMENSIONS} positive dimensions, found {shape}"
            )
        try:
            n_bytes = math.prod(shape[:-1]) * type.row_bytes(shape[-1] if shape else 1)
        except GGUFError as error:
            raise GGUFError(f"{self.path}: tensor {name!r}: {error}") from None
        return _Tensor(name, type, shape, n_bytes, parts)

    def write(self, *, pad_end: bool | None = None) -> None:
        """Write to a temporary file, then rename it.

        `pad_end` pads the end of the file to the alignment. It is the default if there are tensors.
        """
        self._check_limits()
        temporary = self.path.with_name(f".woolly-{secrets.token_hex(8)}.part")
        try:
            try:
                with temporary.open("xb") as file:
                    self._write_to(file, bool(self._tensors) if pad_end is None else pad_end)
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = f"it takes {-(-self.n_bytes() // 10**6)} MB; free some space" if full else "choose another path"
            raise GGUFError(f"{self.path}: cannot write the file ({error.strerror or error}); {advice}") from error

    def _all_values(self) -> dict[str, bytes | memoryview]:
        if self.alignment == DEFAULT_ALIGNMENT or ALIGNMENT_KEY in self._values:
            return self._values
        return {ALIGNMENT_KEY: encode_value(self.alignment, ValueType.UINT32), **self._values}

    def _check_limits(self) -> None:
        """Reject contents that `open_gguf` would reject."""
        values = self._all_values()
        n_name_bytes = sum(len(encode_string(name)) - 8 for name in (*values, *self._tensors))
        for what, found, most in (
            ("metadata entries", len(values), MAX_ENTRIES),
            ("tensors", len(self._tensors), MAX_TENSORS),
            ("bytes of names of keys and tensors", n_name_bytes, MAX_NAMES),
        ):
            if found > most:
                raise GGUFError(f"{self.path}: expected at most {most} {what}, found {found}")

    def _write_to(self, file: BinaryIO, pad_end: bool) -> None:
        values = self._all_values()
        file.write(MAGIC + struct.pack("<IQQ", self.version, len(self._tensors), len(values)))
        for key, data in values.items():
            file.write(encode_string(key))
            file.write(data)
        offset = 0
        for tensor in self._tensors.values():
            dimensions = tuple(reversed(tensor.shape))
            file.write(encode_string(tensor.name))
            file.write(struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
            file.write(struct.pack("<IQ", tensor.type, offset))
            offset += tensor.n_bytes + -tensor.n_bytes % self.alignment
        # Pad before a tensor, not after it, because padding at the end is optional.
        for tensor in self._tensors.values():
            file.write(bytes(-file.tell() % self.alignment))
            start = file.tell()
            for part in tensor.parts():
                file.write(part.data)
            if file.tell() - start != tensor.n_bytes:
                raise GGUFError(
                    f"{self.path}: tensor {tensor.name!r}: expected parts of {tensor.n_bytes} bytes together, "
                    f"found {file.tell() - start}"
                )
        if pad_end:
            file.write(bytes(-file.tell() % self.alignment))


def copy_gguf(source: GGUFFile, path: str | os.PathLike[str]) -> None:
    """Write an open file again. Shards become one file without `split.*` keys.

    The copy of a single file is byte-identical if its tensor data is in list order, without gaps except zero padding.
    """
    writer = GGUFWriter(path, version=source.version or 3, alignment=source.alignment)
    for key in source.metadata:
        if len(source.paths) == 1 or not key.startswith("split."):
            writer.add_raw(key, source.metadata.raw(key))
    end = source.end_of_header
    for tensor in source.tensors.values():
        writer.add_raw_tensor(tensor.name, tensor.type, tensor.shape, tensor.data)
        end = max(end, tensor.offset + tensor.n_bytes)
    pad_end = len(source.paths) > 1 or source.n_bytes >= end + -end % source.alignment
    writer.write(pad_end=pad_end)


def _checked_alignment(alignment: Any) -> int:
    whole = isinstance(alignment, (int, np.integer)) and not isinstance(alignment, bool)
    if not whole or not 8 <= alignment < 2**32 or alignment & (alignment - 1):
        raise GGUFError(f"expected an alignment that is a power of two and at least 8, found {alignment!r}")
    return int(alignment)


def _check_name(path: Path, kind: str, name: str) -> None:
    if not 1 <= len(encode_string(name)) - 8 <= MAX_NAME:
        raise GGUFError(f"{path}: expected a {kind} name of 1 to {MAX_NAME} bytes, found {name!r:.80}")
