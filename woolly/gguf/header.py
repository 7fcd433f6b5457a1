"""Header of a GGUF file, read once and validated completely."""

from __future__ import annotations

import itertools
import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.gguf.cursor import Cursor, quote
from woolly.gguf.metadata import Metadata, read_entry
from woolly.gguf.tensor import Tensor
from woolly.gguf.values import ValueType
from woolly.quant.types import GGMLType

if TYPE_CHECKING:
    from woolly.gguf.mapped_file import FileMap

MAGIC = b"GGUF"
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Maximum key length of the specification. Its limit of 64 for tensor names is exceeded in practice.
MAX_NAME = 65535
# Several times the usual maximum, which is 100 keys and 5,000 tensors with names of 30 bytes. An entry costs a few
# hundred bytes and a character up to four. Both limits keep the memory of opening a file below its size plus 8 MB.
MAX_ENTRIES = 1 << 12
MAX_TENSORS = 1 << 14
MAX_NAMES = 1 << 19  # total size of all names

# Minimum entry size of each list, which bounds counts before anything is read.
_MIN_ENTRY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8

_WITHDRAWN = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass
class ShardAllowance:
    """Remaining limits, shared by all shards of a model."""

    n_tensors: int = MAX_TENSORS
    n_name_bytes: int = MAX_NAMES


@dataclass(frozen=True)
class Header:
    """Validated contents of a header."""

    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, Tensor]
    end: int  # end of the header, before padding


def read_header(file: FileMap, allowance: ShardAllowance) -> Header:
    """Read and check everything before the tensor data. GGUFError if it is invalid or exceeds the allowance."""
    cursor = Cursor(file)
    version = _version(cursor)
    at = cursor.offset
    n_tensors = cursor.count(_MIN_TENSOR_BYTES, "tensors")
    if n_tensors > allowance.n_tensors:
        total = MAX_TENSORS - allowance.n_tensors + n_tensors
        raise cursor.error(f"expected at most {MAX_TENSORS} tensors in all shards together, found {total}", at)
    allowance.n_tensors -= n_tensors
    n_entries = cursor.count(_MIN_ENTRY_BYTES, "metadata entries", MAX_ENTRIES)

    entries = {}
    for index in range(n_entries):
        at = cursor.offset
        key = _name(cursor, f"key {index}", allowance)
        if key in entries:
            raise cursor.error(f"expected every key once, found {quote(key)} again", at)
        cursor.owner = key
        entries[key] = read_entry(cursor)
        cursor.owner = ""
    metadata = Metadata(file, entries)
    alignment = _alignment(cursor, metadata, entries[ALIGNMENT_KEY].start if ALIGNMENT_KEY in entries else 0)

    found: dict[str, tuple[GGMLType, tuple[int, ...]]] = {}
    offsets, places = array("Q"), array("Q")  # per tensor: offset of the data, position of the header entry
    for index in range(n_tensors):
        at = cursor.offset
        name = _name(cursor, f"tensor {index}", allowance)
        if name in found:
            raise cursor.error(f"expected every tensor once, found {quote(name)} again", at)
        cursor.owner = name
        found[name] = _type_and_shape(cursor)
        places.append(cursor.offset)
        offsets.append(cursor.u64("the offset"))
        cursor.owner = ""

    end = cursor.offset
    data_start = -(-end // alignment) * alignment
    tensors = {}
    for (name, (type, shape)), offset, at in zip(found.items(), offsets, places, strict=True):
        tensor = tensors[name] = Tensor(name, type, shape, data_start + offset, file)
        if offset % alignment:
            raise cursor.error(
                f"expected tensor {quote(name)} at a multiple of {alignment} bytes, found offset {offset}", at
            )
        if tensor.offset + tensor.n_bytes > file.n_bytes:
            raise cursor.error(
                f"expected {tensor.n_bytes} bytes of tensor {quote(name)} from byte {tensor.offset} on, "
                f"but the file has only {file.n_bytes} bytes and may be truncated; fetch it again",
                at,
            )
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for first, second in itertools.pairwise(in_order):
        if first.offset + first.n_bytes > second.offset:
            raise cursor.error(
                f"expected tensors apart from each other, but {quote(first.name)} and {quote(second.name)} overlap",
                second.offset,
            )
    return Header(version, alignment, metadata, tensors, end)


def _name(cursor: Cursor, what: str, allowance: ShardAllowance) -> str:
    at = cursor.offset
    name = cursor.string("the name of " + what, MAX_NAME)
    if not name:
        raise cursor.error(f"expected a name for {what}, found an empty string", at)
    allowance.n_name_bytes -= cursor.offset - at - 8
    if allowance.n_name_bytes < 0:
        raise cursor.error(f"expected names of keys and tensors of at most {MAX_NAMES} bytes together, found more", at)
    return name


def _version(cursor: Cursor) -> int:
    magic = cursor.bytes[cursor.skip(4, "the magic 'GGUF'") : 4].tobytes()
    if magic != MAGIC:
        raise cursor.error(_another_form(magic, cursor.bytes[8:9].tobytes()), 0)
    version = cursor.u32("the version")
    if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, 2, 3):
        raise cursor.error("this file is big-endian; expected a little-endian GGUF file of version 2 or 3", 4)
    if version == 1:
        raise cursor.error("version 1 of GGUF is obsolete; expected version 2 or 3, so convert the model again", 4)
    if version not in (2, 3):
        raise cursor.error(f"expected GGUF version 2 or 3, found {version}", 4)
    return version


def _another_form(magic: bytes, ninth: bytes) -> str:
    """Return the error message for a file that is not GGUF, with the fix."""
    if ninth == b"{":  # safetensors: a length of eight bytes, then a JSON header
        return (
            "this is a safetensors file, not a GGUF file: give the folder of the model, which has config.json, too;"
            " `woolly convert FOLDER OUT` writes it as a GGUF file"
        )
    return (
        f"this is not a GGUF file: it begins with {ascii(magic)[1:]}, not with 'GGUF'; if it should be one, fetch it"
        " again"
    )


def _alignment(cursor: Cursor, metadata: Metadata, at: int) -> int:
    if ALIGNMENT_KEY not in metadata:
        return DEFAULT_ALIGNMENT
    type = metadata.get_type(ALIGNMENT_KEY)
    if type is not ValueType.UINT32:
        raise cursor.error(f"expected {ALIGNMENT_KEY!r} to be UINT32, found {type.name}", at)
    alignment: int = metadata[ALIGNMENT_KEY]
    if alignment < 8 or alignment & (alignment - 1):
        raise cursor.error(f"expected {ALIGNMENT_KEY!r} to be a power of two and at least 8, found {alignment}", at)
    return alignment


def _type_and_shape(cursor: Cursor) -> tuple[GGMLType, tuple[int, ...]]:
    shape_at = cursor.offset
    n_dimensions = cursor.u32("the number of dimensions")
    if n_dimensions > MAX_DIMENSIONS:
        raise cursor.error(
            f"expected at most {MAX_DIMENSIONS} dimensions of tensor {quote(cursor.owner)}, found {n_dimensions}",
            shape_at,
        )
    dimensions = [cursor.u64("a dimension") for _ in range(n_dimensions)]
    if not all(dimensions) or math.prod(dimensions) >= 1 << 63:
        raise cursor.error(
            f"expected the dimensions of tensor {quote(cursor.owner)} to be positive with a product below 2**63, "
            f"found {dimensions}",
            shape_at,
        )
    type_at = cursor.offset
    number = cursor.u32("the type")
    try:
        type = GGMLType(number)
    except ValueError:
        note = f" ({_WITHDRAWN[number]}, which ggml has withdrawn)" if number in _WITHDRAWN else ""
        raise cursor.error(
            f"expected a known ggml type for tensor {quote(cursor.owner)}, found {number}{note}", type_at
        ) from None
    n_columns = dimensions[0] if dimensions else 1
    if n_columns % type.block_size:
        raise cursor.error(
            f"expected rows of tensor {quote(cursor.owner)} to be a multiple of {type.block_size} elements, "
            f"the block of {type.name}, found {n_columns}",
            shape_at,
        )
    return type, tuple(reversed(dimensions))
