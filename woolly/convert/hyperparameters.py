"""Typed access to config.json. A missing or wrong value raises an error that names it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from woolly.errors import ModelError


class Hyperparameters:
    """Typed access to config.json. For a multimodal model: to its text part, or its encoder part if it has one."""

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None) -> None:
        self.outer = values  # all values of the file, including those hidden by the part
        parts = ("text_config", "llm_config", "language_config", "encoder_config")
        inner: dict[str, Any] = next((values[x] for x in parts if isinstance(values.get(x), dict)), {})
        self._values = {**(defaults or {}), **values, **inner}
        self._own = inner or values  # values of this part
        self._read: set[str] = set()
        self.where = where

    def with_defaults(self, defaults: Mapping[str, Any]) -> Hyperparameters:
        """Return a copy with class defaults for missing values."""
        return self._with({**defaults, **{k: v for k, v in self._values.items() if v is not None}})

    def replaced(self, **values: Any) -> Hyperparameters:
        """Return a copy with some values replaced."""
        return self._with({**self._values, **values})

    def _with(self, values: dict[str, Any]) -> Hyperparameters:
        other = copy.copy(self)  # `_read` is shared, so reads of the copy count for both
        other._values = values
        return other

    def unread(self) -> dict[str, Any]:
        """Return the settings of the file that were not read and are not null."""
        return {name: value for name, value in self._own.items() if value is not None and name not in self._read}

    def is_null(self, name: str) -> bool:
        """True if the value is null, but not missing."""
        return name in self._own and self._own[name] is None

    def peek(self, name: str) -> Any:
        """Return a value without counting it as read."""
        return self._values.get(name)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of these values that is present and not null."""
        self._read.update(names)
        for name in names:
            if (value := self._values.get(name)) is not None:
                return value
        return default

    def has(self, *names: str) -> bool:
        """Return True if one of these values is present and not null, false or 0."""
        self._read.update(names)
        return any(self._values.get(name) for name in names)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return a non-negative integer. The value is required if there is no default."""
        value = self._wanted(names, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise self._wrong(names, "an integer", value)
        return value

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return a positive integer."""
        value = self.integer(*names, default=default)
        if value <= 0:
            raise self._wrong(names, "a positive integer", value)
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """Return a finite number. The value is required if there is no default."""
        value = self._wanted(names, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._wrong(names, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.get(name, default=default)
        if not isinstance(value, bool):
            raise self._wrong((name,), "true or false", value)
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        value = self.get(name, default=default)
        if not isinstance(value, str):
            raise self._wrong((name,), "a string", value)
        return value

    def items(self, name: str, kind: type | tuple[type, ...], n: int | None = None) -> list[Any]:
        """Return a list of `n` items of one kind."""
        value = self._wanted((name,), None)
        sound = isinstance(value, list) and all(isinstance(one, kind) for one in value)
        if not sound or (n is not None and len(value) != n):
            raise self._wrong((name,), "a list" if n is None else f"a list of {n} items", value)
        return list(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object, empty if it is missing."""
        value = self.get(name, default={})
        if not isinstance(value, dict):
            raise self._wrong((name,), "an object", value)
        return value

    def inner(self, values: Mapping[str, Any]) -> Hyperparameters:
        """Return typed access to a nested object."""
        return Hyperparameters(values, self.where)

    def reject(self, name: str, *, unless: tuple[Any, ...] = (None, False, 0)) -> None:
        """Raise ModelError for a value that changes the output but has no GGUF key."""
        self._read.add(name)
        if (value := self._values.get(name)) not in unless:
            raise ModelError(
                f"{self.where}: {name} is {value!r:.60}, which GGUF files of this architecture do not support"
            )

    @property
    def n_layers(self) -> int:
        """Number of layers without draft blocks."""
        names = ("num_hidden_layers", "n_layers", "num_layers", "n_layer", "num_transformer_layers")
        n = self.positive(*names, default=self._n_listed())
        if n > 1 << 12:
            raise self._wrong(("num_hidden_layers",), "at most 4096", n)
        return n

    def _n_listed(self) -> int | None:
        listed = self.get("layers_block_type", "layer_types")
        pattern = self.get("hybrid_override_pattern")
        return len(listed) if isinstance(listed, list) else len(pattern) if isinstance(pattern, str) else None

    def _wanted(self, names: tuple[str, ...], default: Any) -> Any:
        value = self.get(*names, default=default)
        if value is None:
            raise ModelError(f"{self.where}: {names[0]} is missing; this architecture needs it")
        return value

    def _wrong(self, names: tuple[str, ...], expected: str, value: Any) -> ModelError:
        name = next((one for one in names if self._values.get(one) is not None), names[0])
        return ModelError(f"{self.where}: {name} is {value!r:.60}; expected {expected}")
