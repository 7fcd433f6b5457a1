"""WireMessage: a kind, fields as JSON, and arrays as raw bytes. Parsing a message runs no code."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_HEAD = struct.Struct(">I")  # number of following JSON bytes
_TYPES: dict[str, np.dtype[Any]] = {"i4": np.dtype("<i4"), "f4": np.dtype("<f4"), "u1": np.dtype("u1")}
_MAX_AXES = 3


class BadMessage(ValueError):  # noqa: N818 - named after the content
    """Bytes that are not a valid message."""


@dataclass(frozen=True)
class WireMessage:
    """Message between two processes."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON values
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # int32, float32 or uint8

    def parts(self) -> list[bytes | memoryview]:
        """Return the bytes of the message, in parts to avoid a copy."""
        arrays = {
            name: np.ascontiguousarray(array, _TYPES[_type_of(name, array)]) for name, array in self.arrays.items()
        }
        shapes = {name: [_type_of(name, array), *array.shape] for name, array in arrays.items()}
        head = json.dumps({"kind": self.kind, "fields": self.fields, "arrays": shapes}).encode()
        return [_HEAD.pack(len(head)), head, *(array.data.cast("B") for array in arrays.values() if array.size)]

    @classmethod
    def read(cls, data: bytearray | bytes) -> WireMessage:
        """Parse a message; its arrays are views into `data`. Raise BadMessage if `data` is invalid."""
        try:
            (n_head,) = _HEAD.unpack_from(data)
            head = json.loads(memoryview(data)[_HEAD.size : _HEAD.size + n_head].tobytes())
            kind, fields, shapes = head["kind"], head["fields"], head["arrays"]
            if not (isinstance(kind, str) and isinstance(fields, dict) and isinstance(shapes, dict)):
                raise BadMessage("the message has no kind, fields or arrays")
            arrays, at = {}, _HEAD.size + n_head
            for name, (code, *shape) in shapes.items():
                if len(shape) > _MAX_AXES or not all(type(n) is int and n >= 0 for n in shape):
                    raise BadMessage(f"array {name!r} has the unsupported shape {shape}")
                n_items = math.prod(shape)
                arrays[name] = np.frombuffer(data, _TYPES[code], n_items, at).reshape(shape)
                at += n_items * _TYPES[code].itemsize
        except (struct.error, KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadMessage(f"invalid message: {error}") from None
        except RecursionError:
            raise BadMessage("invalid message: the JSON is nested too deeply") from None
        if at != len(data):
            raise BadMessage(f"invalid message: expected {at} bytes, got {len(data)}")
        return cls(kind, fields, arrays)


def _type_of(name: str, array: npt.NDArray[Any]) -> str:
    code = f"{array.dtype.kind}{array.dtype.itemsize}"
    if code not in _TYPES:
        raise BadMessage(f"array {name!r} has the unsupported type {array.dtype}")
    return code
