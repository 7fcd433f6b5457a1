"""Metadata with overridden values (`--override-kv`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.errors import RequestError
from woolly.gguf.metadata import Metadata
from woolly.gguf.values import encode_value

Value = int | float | bool | str

_TYPES = {"int": int, "float": float, "bool": bool, "str": str}
_BOOLS = {"true": True, "false": False}
_FORM = "expected KEY=TYPE:VALUE, with a TYPE of int, float, bool or str"


class Overlay(Metadata):
    """Metadata of a file with overrides. Keys may begin with "*." instead of the architecture."""

    __slots__ = ("_given", "unread")

    def __init__(self, metadata: Metadata, given: Mapping[str, Value]) -> None:
        """Apply overrides. Raise RequestError for a value whose type differs from the file's."""
        super().__init__(metadata._file, metadata._entries)
        architecture = str(metadata.get("general.architecture", ""))
        self._given: dict[str, Value] = {}
        for name, value in given.items():
            key = f"{architecture}{name[1:]}" if name.startswith("*.") else name
            self._given[key] = _checked(key, value, metadata)
        self.unread = set(self._given)  # keys that were never read

    def __getitem__(self, key: str) -> Any:
        if key in self._given:
            self.unread.discard(key)
            return self._given[key]
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        yield from (key for key in self._given if key not in self._entries)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in self._given or super().__contains__(key)

    def raw(self, key: str) -> NDArray[np.uint8]:
        """Return the encoded value with its type tag; overrides have the type of the file's value."""
        if key not in self._given:
            return super().raw(key)
        self.unread.discard(key)
        type = self.get_type(key) if key in self._entries else None
        return np.frombuffer(encode_value(self._given[key], type), np.uint8)

    @property
    def texts(self) -> tuple[str, ...]:
        """Overrides as strings, in the format of `write_overrides`."""
        return write_overrides(self._given)

    def check_read(self) -> None:
        """Raise RequestError for an override that was never read and therefore has no effect."""
        if self.unread:
            key = min(self.unread)
            raise RequestError(
                f"metadata gives {key!r}, which this model does not use; check the name",
                field="metadata",
            )


def parse_overrides(given: Mapping[str, Value] | str | Iterable[str] | None) -> dict[str, Value]:
    """Return overrides by key, from a mapping or comma-separated strings such as llama.rope.freq_base=float:500000."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if not isinstance(key, str) or not isinstance(value, (int, float, bool, str)):
                raise RequestError(
                    f"metadata gives {key!r} as {value!r}; expected a name and a number, a bool or a string",
                    field="metadata",
                )
        return dict(given)
    texts = given.split(",") if isinstance(given, str) else [part for text in given or () for part in text.split(",")]
    return dict(_parse(text.strip()) for text in texts if text.strip())


def write_overrides(given: Mapping[str, Value]) -> tuple[str, ...]:
    """Return overrides as strings for `parse_overrides`, in a fixed order."""
    return tuple(f"{key}={type(value).__name__}:{value}" for key, value in sorted(given.items()))


def _parse(text: str) -> tuple[str, Value]:
    key, is_there, typed = text.partition("=")
    kind, has_kind, value = typed.partition(":")
    if not (is_there and has_kind and key) or kind not in _TYPES:
        raise RequestError(f"metadata override is {text[:80]!r}; {_FORM}", field="metadata")
    if kind == "bool":
        if value.lower() not in _BOOLS:
            raise RequestError(f"metadata gives {key!r} as {value[:40]!r}, which is not a bool", field="metadata")
        return key, _BOOLS[value.lower()]
    try:
        return key, _TYPES[kind](value)
    except ValueError:
        raise RequestError(
            f"metadata gives {key!r} as {value[:40]!r}, which is not {'an' if kind == 'int' else 'a'} {kind}",
            field="metadata",
        ) from None


def _checked(key: str, value: Value, metadata: Metadata) -> Value:
    """Return the value in the file's type. Integers are accepted for floats; otherwise the types must match."""
    if key not in metadata:
        return value
    old = metadata[key]
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(old) is not type(value):
        has = type(old).__name__ if isinstance(old, (int, float, bool, str)) else "an array"
        raise RequestError(
            f"metadata gives {key!r} as {type(value).__name__}, but in the file it is {has}", field="metadata"
        )
    return value
