"""Types and encoding of GGUF metadata values."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from woolly.errors import GGUFError


class ValueType(enum.IntEnum):
    """Declared type of a metadata value, or of an array's elements."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def dtype(self) -> np.dtype[np.generic] | None:
        """Little-endian NumPy type of a fixed-size value, or None for STRING and ARRAY."""
        return _DTYPES.get(self)


_DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.UINT8: np.dtype("u1"),
    ValueType.INT8: np.dtype("i1"),
    ValueType.UINT16: np.dtype("<u2"),
    ValueType.INT16: np.dtype("<i2"),
    ValueType.UINT32: np.dtype("<u4"),
    ValueType.INT32: np.dtype("<i4"),
    ValueType.FLOAT32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.UINT64: np.dtype("<u8"),
    ValueType.INT64: np.dtype("<i8"),
    ValueType.FLOAT64: np.dtype("<f8"),
}

_FORMATS = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
_FLOATS = (ValueType.FLOAT32, ValueType.FLOAT64)
_INTEGER_RANGES = (
    (ValueType.UINT32, 0, 2**32),
    (ValueType.INT32, -(2**31), 2**31),
    (ValueType.UINT64, 0, 2**64),
    (ValueType.INT64, -(2**63), 2**63),
)
_BY_DTYPE = {type.dtype: type for type in ValueType if type.dtype is not None}


def encode_string(text: str) -> bytes:
    """Encode a length-prefixed string. Surrogate escapes become the original bytes."""
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise GGUFError(f"expected a string that UTF-8 can encode, found {text!r:.80} ({error.reason})") from None
    return struct.pack("<Q", len(data)) + data


def encode_value(value: Any, type: ValueType | None) -> bytes:
    """Encode a value with its type tag. For a sequence, `type` is the element type."""
    if isinstance(value, np.ndarray) and value.ndim != 1:
        if value.ndim == 0:
            return encode_value(value[()], type)
        value = list(value)
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
        return struct.pack("<I", ValueType.ARRAY) + _encode_array(value, type)
    type = _infer([value]) if type is None else type
    if type is ValueType.ARRAY:
        raise GGUFError(f"expected a sequence for an array, found {value!r:.80}")
    return struct.pack("<I", type) + _encode_scalar(value, type)


def _encode_array(values: Sequence[Any] | np.ndarray[Any, Any], type: ValueType | None) -> bytes:
    """Encode element type, count and elements."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        natural = _BY_DTYPE.get(values.dtype.newbyteorder("<"))
        if natural is not None and type in (None, natural):
            return struct.pack("<IQ", natural, len(values)) + values.astype(natural.dtype).tobytes()
    items = values.tolist() if isinstance(values, np.ndarray) else values
    if type is None and items and all(_is_sequence(item) for item in items):
        type = ValueType.ARRAY
    if type is ValueType.ARRAY:
        parts = [_encode_array(item, None) for item in items]
    else:
        type = _infer(items) if type is None else type
        parts = [_encode_scalar(item, type) for item in items]
    return struct.pack("<IQ", type, len(items)) + b"".join(parts)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes))


def _infer(items: Sequence[Any]) -> ValueType:
    """Return the first of string, boolean, integer and float that fits all items."""
    if not items:
        raise GGUFError("expected an element type, because the array is empty")
    if all(isinstance(item, str) for item in items):
        return ValueType.STRING
    if all(isinstance(item, (bool, np.bool_)) for item in items):
        return ValueType.BOOL
    numbers = all(isinstance(item, (int, float, np.integer, np.floating)) for item in items)
    if numbers and not any(isinstance(item, bool) for item in items):
        if len(items) == 1 and isinstance(items[0], np.generic) and items[0].dtype in _BY_DTYPE:
            return _BY_DTYPE[items[0].dtype]
        if any(isinstance(item, (float, np.floating)) for item in items):
            return ValueType.FLOAT32
        low, high = min(items), max(items)
        for type, first, end in _INTEGER_RANGES:
            if first <= low and high < end:
                return type
        raise GGUFError(f"expected integers within 64 bits, found {low if low < 0 else high}")
    raise GGUFError(f"expected a string, a boolean, a number, or a sequence of one of them, found {items[0]!r:.80}")


def _encode_scalar(value: Any, type: ValueType) -> bytes:
    if type is ValueType.STRING:
        if isinstance(value, str):
            return encode_string(value)
    elif type is ValueType.BOOL:
        if isinstance(value, (bool, np.bool_)):
            return b"\1" if value else b"\0"
    elif not isinstance(value, (bool, np.bool_)):
        whole = isinstance(value, (int, np.integer))
        if whole or (type in _FLOATS and isinstance(value, (float, np.floating))):
            try:
                return struct.pack(_FORMATS[type], value)
            except (struct.error, OverflowError):
                pass
    raise GGUFError(f"expected a value within the range of {type.name}, found {value!r:.80}")
