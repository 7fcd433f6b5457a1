"""Option: the one row that says everything about a field of SamplingParams."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_KINDS = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class Option:
    """A field: its range, the sampler that reads it, and its names and words for people.

    Range checks, command-line flags, HTTP bodies, llama-server's settings, the page's form and the reference read it.
    """

    name: str
    type: str  # the annotation
    default: Any
    help: str  # one sentence
    low: float | None = None
    high: float | None = None
    typed_low: float | None = None  # the lowest value that a person means; the library may accept lower ones
    off: Any = None  # the value at which the option asks for nothing
    sampler: str | None = None  # "*": the whole chain
    needs: tuple[str, ...] = ()  # without one of these options, this one has no effect
    flags: str = ""  # of the command line, separated by spaces; "": none
    shown: str = ""  # what people read in place of the default
    group: str = ""  # the part of the page's form; "": not there
    label: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()  # names of the values 0, 1, ...
    form: str = ""  # how a person types a value that is not of a plain type: names or json

    @property
    def is_optional(self) -> bool:
        """True if None is a value."""
        return self.type.endswith(" | None")

    @functools.cached_property  # each request asks some 200 times
    def kind(self) -> Any:
        """The plain type or list of the values, None for others."""
        plain = self.type.removesuffix(" | None")
        if plain.startswith("tuple[") and plain.endswith(", ...]"):
            item = _KINDS.get(plain[6:-6])
            return None if item is None else list[item]  # type: ignore[valid-type]
        return _KINDS.get(plain)

    @property
    def runs_with_mirostat(self) -> bool:
        """True if the option has an effect while Mirostat, which replaces all samplers but one, is on."""
        return self.sampler is None or self.name == "temperature"

    def to_form(self) -> dict[str, Any]:
        """The row as the page reads it."""
        forms = {int: "whole", float: "number", bool: "flag", list[str]: "lines"}
        form = {
            "name": self.name,
            "group": self.group,
            "label": self.label or self.name.replace("_", " ").capitalize(),
            "kind": self.form or ("choice" if self.choices else forms[self.kind]),
            "help": self.help,
            "min": self.low if self.typed_low is None else self.typed_low,
            "max": self.high,
            "step": None if self.kind is not float else 0.01 if self.high == 1.0 else 0.05,
            "unit": self.unit or None,
            "off": self.off,
            "needs": list(self.needs),
            "choices": list(self.choices),
            "escaped": (self.kind == list[str] and any("\n" in text for text in self.default)) or None,
            "mirostat": None if self.runs_with_mirostat else False,
        }
        return {key: value for key, value in form.items() if value not in (None, [])}


def option(
    default: Any, help: str, *, factory: Callable[[], Any] | None = None, hash: bool | None = None, **row: Any
) -> Any:
    """A dataclass field with its row; `row` are fields of Option."""
    metadata = {"option": {"help": help, **row}}
    if factory is not None:
        return dataclasses.field(default_factory=factory, hash=hash, metadata=metadata)
    return dataclasses.field(default=default, hash=hash, metadata=metadata)


def options_of(params: type) -> dict[str, Option]:
    """The rows of SamplingParams, or of a class derived from it, by name."""
    return _read(params)


@functools.cache
def _read(params: Any) -> dict[str, Option]:
    return {
        field.name: Option(
            field.name,
            field.type if isinstance(field.type, str) else inspect.formatannotation(field.type),
            field.default_factory() if callable(field.default_factory) else field.default,
            **field.metadata["option"],
        )
        for field in dataclasses.fields(params)
    }
