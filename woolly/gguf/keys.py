"""Typed access to metadata. A missing or invalid key raises an error that names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from woolly.errors import ModelError, UnsupportedError


class Keys:
    """Typed access to the `{architecture}.*` keys of a file."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, ctx: int | None = None) -> None:
        self._metadata = metadata
        self.architecture = architecture
        self._ctx = ctx
        self.positions: int | None = None  # maximum supported position; None: no limit

    @property
    def context(self) -> int:
        """Context length: the caller's value, or else the file's maximum."""
        return self.positive("context_length") if self._ctx is None else self._ctx

    def without(self, name: str) -> Keys:
        """Return a copy without the key `name`."""
        left = f"{self.architecture}.{name}"
        return Keys({k: v for k, v in self._metadata.items() if k != left}, self.architecture, self._ctx)

    def bound_context(self, most: int, reason: str) -> None:
        """Limit the context to `most`. Raise UnsupportedError with the reason if the caller requested a longer one."""
        if self._ctx is not None and self._ctx > most:
            raise UnsupportedError(reason)
        self.positions = most

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a non-negative integer. The key is required if there is no default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, "an integer", value)
        return value

    def positive(self, name: str, default: int | None = None, *, most: int | None = None) -> int:
        """Return a positive integer up to `most`."""
        value = self.integer(name, default)
        if value <= 0 or (most is not None and value > most):
            raise self._wrong(name, "a positive integer" if most is None else f"an integer from 1 to {most}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number. The key is required if there is no default."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, "a number", value)
        if value != value or value in (float("inf"), float("-inf")):
            raise self._wrong(name, "a finite number", value)
        return float(value)

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string. The key is required if there is no default."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Return an array of strings, empty if the key is missing."""
        value: Any = self._get(name, ())
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(x, str) for x in value):
            raise self._wrong(name, "an array of strings", value)
        return tuple(value)

    def whole_numbers(self, name: str) -> tuple[int, ...]:
        """Return an array of integers. A single integer becomes an array with one item."""
        value: Any = self._get(name, None)
        values = [value] if _is_whole(value) else _listed(value)
        if not values or not all(_is_whole(one) for one in values):
            raise self._wrong(name, "an integer or an array of integers", value)
        return tuple(int(one) for one in values)

    def listed(self, name: str) -> tuple[Any, ...]:
        """Return the values of an array, empty if the key is missing or not an array."""
        value: Any = self._metadata.get(f"{self.architecture}.{name}", ())
        return () if _is_whole(value) else tuple(_listed(value))

    def has(self, name: str) -> bool:
        """Return True if the file has this key."""
        return f"{self.architecture}.{name}" in self._metadata

    def is_set(self, name: str) -> bool:
        """Return True if the file has this key and the value is not zero or false."""
        value = self._metadata.get(f"{self.architecture}.{name}")
        return value is not None and bool(np.any(np.asarray(value) != 0))

    def per_layer(self, name: str, n: int, default: int | None = None) -> tuple[int, ...]:
        """Return a non-negative integer for each of n layers. The key is an array, or one integer for all layers."""
        value: Any = self._get(name, default)
        values = [value] * n if _is_whole(value) else _listed(value)
        if len(values) < n or not all(_is_whole(one) and one >= 0 for one in values):
            raise self._wrong(name, f"an integer or {n} integers", value)
        return tuple(int(one) for one in values[:n])

    def pattern(self, name: str, n: int, period: int, dense_first: bool = False) -> tuple[bool, ...]:
        """Return a flag for each of n layers.

        The value is an array of flags or a period p. With a period, the last of every p layers is False, or the first
        of every p layers with `dense_first`.
        """
        value: Any = self._get(name, period)
        if not _is_whole(value):
            flags = [bool(one) for one in _listed(value)]
            if len(flags) < n:
                raise self._wrong(name, f"an integer or {n} flags", value)
            return tuple(flags[:n])
        if dense_first:
            return tuple(value == 0 or i % value != 0 for i in range(n))
        return tuple(value == 0 or i % value < value - 1 for i in range(n))

    def token(self, name: str, default: int | None = None) -> int:
        """Return the id of a special token. This key has no architecture prefix and is required without a default."""
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelError(f"metadata key {key} is missing; the {self.architecture} model needs it")
        if not _is_whole(value) or value < 0:
            raise ModelError(f"metadata key {key} is {value!r}; expected a token id")
        return int(value)

    def shared_flag(self, key: str, default: bool) -> bool:
        """Return a boolean from a key without architecture prefix."""
        value = self._metadata.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"metadata key {key} is {value!r:.60}; expected true or false")
        return value

    def numbers(self, name: str, n: int) -> tuple[float, ...]:
        """Return a number for each of n layers. The key is an array, or one number for all layers."""
        return self.shared_numbers(f"{self.architecture}.{name}", n)

    def shared_numbers(self, key: str, n: int) -> tuple[float, ...]:
        """Return a number for each of n layers, from a key without architecture prefix."""
        value: Any = self._metadata.get(key, ())
        is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
        values = [value] * n if is_one else _listed(value)
        if len(values) < n:
            raise ModelError(f"metadata key {key} has {len(values)} numbers, but the model has {n} layers")
        return tuple(float(one) for one in values[:n])

    def _get(self, name: str, default: object) -> object:
        key = f"{self.architecture}.{name}"
        if key in self._metadata:
            return self._metadata[key]
        if default is None:
            raise ModelError(f"metadata key {key} is missing; the {self.architecture} model needs it")
        return default

    def _wrong(self, name: str, expected: str, value: object) -> ModelError:
        found = f"{value!r:.60}" if isinstance(value, (bool, int, float, str)) else "an array"
        return ModelError(f"metadata key {self.architecture}.{name} is {found}; expected {expected}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else []
