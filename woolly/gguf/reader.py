"""Opening of GGUF files, single or split into shards."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from woolly.errors import GGUFError
from woolly.gguf.cursor import quote
from woolly.gguf.ggml_bin import is_ggml_bin
from woolly.gguf.header import DEFAULT_ALIGNMENT, Header, ShardAllowance, read_header
from woolly.gguf.mapped_file import FileMap
from woolly.gguf.overlay import Overlay, Value
from woolly.gguf.values import ValueType

if TYPE_CHECKING:
    from woolly.gguf.metadata import Metadata
    from woolly.gguf.tensor import Tensor

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
# The largest models have about 200 shards. Each shard costs a memory map and a path.
_MAX_SHARDS = 1024
_COUNTS = (
    *(ValueType.UINT8, ValueType.INT8, ValueType.UINT16, ValueType.INT16),
    *(ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64),
)


class GGUFFile:
    """Open model: metadata of the first file, and tensors of all shards in file order.

    Files are memory-mapped and read lazily. Closing drops the maps, but arrays in use stay valid.
    """

    __slots__ = (
        "_files",
        "_is_closed",
        "alignment",
        "end_of_header",
        "metadata",
        "n_bytes",
        "path",
        "paths",
        "tensors",
        "version",
    )

    def __init__(self, files: list[FileMap], first: Header, tensors: dict[str, Tensor]) -> None:
        self._files = files
        self._is_closed = False
        self.path: Path = files[0].path
        self.paths: tuple[Path, ...] = tuple(file.path for file in files)
        self.version: int = first.version  # 0: whisper.cpp's format, which has no version
        self.alignment: int = first.alignment
        self.end_of_header: int = first.end
        self.n_bytes: int = sum(file.n_bytes for file in files)
        self.metadata: Metadata = first.metadata
        self.tensors: Mapping[str, Tensor] = MappingProxyType(tensors)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"

    def overlay(self, given: Mapping[str, Value]) -> None:
        """Override metadata values. Raise RequestError for a value whose type differs from the file's."""
        if given:
            self.metadata = Overlay(self.metadata, given)

    def check(self) -> None:
        """Raise ModelError if a file was truncated while in use."""
        for file in self._files:
            file.check()

    def close(self) -> None:
        """Drop the maps. Scalar metadata stays readable; arrays and tensors raise GGUFError."""
        if not self._is_closed:
            self._is_closed = True
            self.metadata.detach()
            for file in self._files:
                file.close()


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, all shards of a split model (given the first), or a model of whisper.cpp.

    GGUFError names the file and the invalid byte. A file that opens can be read to its last byte. Opening allocates at
    most the size of the files plus 8 MB.
    """
    file = FileMap(Path(path))
    if is_ggml_bin(file):
        from woolly.gguf.parakeet_bin import is_parakeet_bin, read_parakeet_bin  # these formats are rare
        from woolly.gguf.whisper_bin import read_whisper_bin

        metadata, own, end = (read_parakeet_bin if is_parakeet_bin(file) else read_whisper_bin)(file)
        return GGUFFile([file], Header(0, DEFAULT_ALIGNMENT, metadata, own, end), own)
    allowance = ShardAllowance()
    first = read_header(file, allowance)
    files, tensors = [file], first.tensors
    count = _split_number(file, first, "split.count", 1)
    if count > 1:
        stem = _check_first(file, first, count)
        known = {file.identity}
        for number in range(1, count):
            other = file.path.with_name(f"{stem}-{number + 1:05}-of-{count:05}.gguf")
            if not other.exists():
                raise GGUFError(
                    f"{other}: this shard of {file.path} is missing; expected all {count} shards", code="shard"
                )
            shard = FileMap(other)
            if shard.identity in known:
                raise GGUFError(f"{other}: expected shard {number + 1}, found the same file as another shard")
            known.add(shard.identity)
            files.append(shard)
            header = read_header(shard, allowance)
            _check_shard(shard, header, number, count)
            _merge(tensors, header.tensors)
        _check_total(file, first, count, len(tensors))
    return GGUFFile(files, first, tensors)


def _merge(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    for name, tensor in others.items():
        if name in tensors:
            raise GGUFError(
                f"{tensor.path}: expected every tensor in one shard only, but {quote(name)} is also in"
                f" {tensors[name].path}; download both shards again (at byte {tensor.offset})"
            )
        tensors[name] = tensor


def _split_number(file: FileMap, header: Header, key: str, default: int) -> int:
    if key not in header.metadata:
        return default
    type = header.metadata.get_type(key)
    # Check the type first: a value that is not a number may be a very long string.
    value: int = header.metadata[key] if type in _COUNTS else -1
    if value < 0:
        found = f"the {type.name} {value}" if type in _COUNTS else type.name
        raise GGUFError(f"{file.path}: expected {key!r} to be a count, found {found}")
    return value


def _check_first(file: FileMap, header: Header, count: int) -> str:
    """Check that this is shard 1 and its name determines the other names. Return the name's stem."""
    name = _SHARD_NAME.fullmatch(file.path.name)
    number = _split_number(file, header, "split.no", 0)
    if number:
        first = f"{name['stem']}-00001-of-{count:05}.gguf" if name else f"the file named -00001-of-{count:05}.gguf"
        raise GGUFError(
            f"{file.path}: this is shard {number + 1} of {count}; open the first shard, {first}", code="shard"
        )
    if name is None or int(name["number"]) != 1 or int(name["count"]) != count:
        raise GGUFError(
            f"{file.path}: this is shard 1 of {count}; expected it to be named NAME-00001-of-{count:05}.gguf",
            code="shard",
        )
    if count > _MAX_SHARDS:
        raise GGUFError(f"{file.path}: expected at most {_MAX_SHARDS} shards ('split.count'), found {count}")
    return name["stem"]


def _check_shard(file: FileMap, header: Header, number: int, count: int) -> None:
    for key, expected in (("split.no", number), ("split.count", count)):
        if key not in header.metadata:
            raise GGUFError(f"{file.path}: expected a shard with {key!r} = {expected}, found no such key")
        found = _split_number(file, header, key, 0)
        if found != expected:
            raise GGUFError(f"{file.path}: expected a shard with {key!r} = {expected}, found {found}")


def _check_total(file: FileMap, first: Header, count: int, n_tensors: int) -> None:
    expected = _split_number(file, first, "split.tensors.count", n_tensors)
    if expected != n_tensors:
        raise GGUFError(
            f"{file.path}: expected {expected} tensors in {count} shards ('split.tensors.count'), found {n_tensors}"
        )
