"""Metadata of a GGUF file: typed values, read lazily."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.gguf.cursor import Cursor, quote
from woolly.gguf.values import ValueType

if TYPE_CHECKING:
    from woolly.gguf.mapped_file import FileMap

# Limits the recursion. GGUF allows nested arrays of any depth, but known files have no nested arrays.
_MAX_DEPTH = 4
_MAX_INNER_ARRAYS = 1 << 16
_MAX_ELEMENTS = 1 << 25  # in all arrays; a hundred times the largest vocabulary, which takes 0.2 s to scan
_ARRAY_HEADER = struct.Struct("<IQ")


def text_of(metadata: Mapping[str, Any], key: str) -> str:
    """Return a string of the metadata, empty if it is missing or not a string. Arrays compare elementwise."""
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


class StringArray(Sequence[str]):
    """Array of strings. The first access decodes all strings."""

    __slots__ = ("_bytes", "_count", "_offset", "_strings")

    def __init__(self, data: NDArray[np.uint8], offset: int, count: int) -> None:
        self._bytes = data
        self._offset = offset
        self._count = count
        self._strings: list[str] | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"StringArray({self._count} strings)"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StringArray):
            return self._decoded() == other._decoded()
        return self._decoded() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def tolist(self) -> list[str]:
        """Return all strings as a new list."""
        return self._decoded().copy()

    def texts(self) -> _native.Texts:
        """Return all strings as bytes. Without Python objects, this takes a tenth of the decoding time."""
        return _native.Texts.read(self._bytes, self._offset, self._count)

    def _decoded(self) -> list[str]:
        if self._strings is None:
            self._strings = _native.decode_strings(self._bytes, self._offset, self._count)
        return self._strings


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of a value: `start` is the type tag, `data` the first payload byte, `stop` the end."""

    type: ValueType
    element_type: ValueType | None  # for arrays only
    count: int  # number of array elements, else 1
    start: int
    data: int
    stop: int


def read_entry(cursor: Cursor) -> Entry:
    """Validate the value at the cursor, whose key is the cursor's owner, and skip it."""
    start = cursor.offset
    type = _value_type(cursor, "the type")
    if type is not ValueType.ARRAY:
        data = cursor.offset
        _skip_values(cursor, type, 1, 0)
        return Entry(type, None, 1, start, data, cursor.offset)
    element_type, count, data = _array_header(cursor)
    _skip_values(cursor, element_type, count, 1)
    return Entry(type, element_type, count, start, data, cursor.offset)


def _value_type(cursor: Cursor, what: str) -> ValueType:
    at = cursor.offset
    number = cursor.u32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(f"expected {what}{cursor.of_owner()} from 0 to 12, found {number}", at) from None


def _array_header(cursor: Cursor) -> tuple[ValueType, int, int]:
    element_type = _value_type(cursor, "the element type")
    dtype = element_type.dtype
    min_bytes = dtype.itemsize if dtype else 8 if element_type is ValueType.STRING else 12
    count = cursor.count(min_bytes, "elements")
    cursor.n_elements += count
    if cursor.n_elements > _MAX_ELEMENTS:
        raise cursor.error(f"expected at most {_MAX_ELEMENTS} elements in all arrays of the metadata, found more")
    return element_type, count, cursor.offset


def _skip_values(cursor: Cursor, type: ValueType, count: int, depth: int) -> None:
    if type is ValueType.STRING:
        cursor.skip_strings(count)
    elif type is ValueType.ARRAY:
        if depth >= _MAX_DEPTH:
            raise cursor.error(f"expected {quote(cursor.owner)} to nest at most {_MAX_DEPTH} arrays, found more")
        cursor.n_inner_arrays += count
        if cursor.n_inner_arrays > _MAX_INNER_ARRAYS:
            raise cursor.error(f"expected at most {_MAX_INNER_ARRAYS} arrays within arrays, found more")
        for _ in range(count):
            element_type, n, _ = _array_header(cursor)
            _skip_values(cursor, element_type, n, depth + 1)
    else:
        assert type.dtype is not None
        start = cursor.skip(type.dtype.itemsize * count, "the value")
        if type is ValueType.BOOL and count:
            values = cursor.bytes[start : cursor.offset]
            if values.max() > 1:
                at = int(values.argmax())
                raise cursor.error(
                    f"expected {quote(cursor.owner)} to contain booleans (0 or 1), found {values[at]}", start + at
                )


class Metadata(Mapping[str, Any]):
    """Mapping of keys to values, in file order.

    Scalars are Python int, float, bool or str. Numeric arrays are read-only NumPy views into the file, arrays of
    strings are `StringArray`, and nested arrays are lists.
    """

    __slots__ = ("_entries", "_file", "_values")

    def __init__(self, file: FileMap, entries: dict[str, Entry]) -> None:
        self._file = file
        self._entries = entries
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            entry = self._entries[key]
            if entry.element_type is None:
                self._values[key] = _scalar(self._file.bytes, entry)
            else:
                self._values[key], _ = _array(self._file.bytes, entry.element_type, entry.count, entry.data)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys of {self._file.path})"

    def get_type(self, key: str) -> ValueType:
        """Return the declared type of a value. Raises KeyError if the key is missing."""
        return self._entries[key].type

    def get_element_type(self, key: str) -> ValueType | None:
        """Return the declared element type of an array, or None for a scalar. Raises KeyError if the key is missing."""
        return self._entries[key].element_type

    def raw(self, key: str) -> NDArray[np.uint8]:
        """Return the encoded value with its type tag, as accepted by `GGUFWriter.add_raw`."""
        entry = self._entries[key]
        return self._file.bytes[entry.start : entry.stop]

    def detach(self) -> None:
        """Read all scalars and drop all arrays, so that the map of the file is no longer needed."""
        self._values = {key: self[key] for key, entry in self._entries.items() if entry.element_type is None}


def _scalar(data: NDArray[np.uint8], entry: Entry) -> Any:
    dtype = entry.type.dtype
    if dtype is None:
        return data[entry.data + 8 : entry.stop].tobytes().decode("utf-8", "surrogateescape")
    return data[entry.data : entry.stop].view(dtype)[0].item()


def _array(data: NDArray[np.uint8], type: ValueType, count: int, offset: int) -> tuple[Any, int]:
    """Return the array at an offset that `read_entry` has checked, and the offset of its end."""
    dtype = type.dtype
    if dtype is not None:
        stop = offset + count * dtype.itemsize
        return data[offset:stop].view(dtype), stop
    if type is ValueType.STRING:
        return StringArray(data, offset, count), _native.skip_strings(data, offset, count)[0]
    values = []
    for _ in range(count):
        number, n = _ARRAY_HEADER.unpack_from(data.data, offset)
        value, offset = _array(data, ValueType(number), n, offset + _ARRAY_HEADER.size)
        values.append(value)
    return values, offset
