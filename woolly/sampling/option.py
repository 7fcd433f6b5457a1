"""Option: declaration of a SamplingParams field."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from woolly.errors import RequestError

_KINDS = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class Option:
    """Declaration of a field: its range, sampler, names and descriptions.

    Used by range checks, command line flags, HTTP bodies, llama-server's settings, the form of the web page and the
    reference.
    """

    name: str
    type: str  # annotation
    default: Any
    help: str  # one sentence
    low: float | None = None
    high: float | None = None
    typed_low: float | None = None  # minimum for user interfaces; the library may accept lower values
    off: Any = None  # value that disables the option
    sampler: str | None = None  # sampler that uses the option; "*" for the complete chain
    needs: tuple[str, ...] = ()  # the option has no effect unless one of these options is enabled
    flags: str = ""  # command line flags, separated by spaces; "": no flag
    shown: str = ""  # text to show instead of the default
    group: str = ""  # section of the page's form; "": not in the form
    label: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()  # names of the values 0, 1, ...
    form: str = ""  # input format of values without a plain type: names or json

    @property
    def is_optional(self) -> bool:
        """True if None is a valid value."""
        return self.type.endswith(" | None")

    @functools.cached_property  # read about 200 times per request
    def kind(self) -> Any:
        """Type of the values: a plain type, a list of one, or None."""
        plain = self.type.removesuffix(" | None")
        if plain.startswith("tuple[") and plain.endswith(", ...]"):
            item = _KINDS.get(plain[6:-6])
            return None if item is None else list[item]  # type: ignore[valid-type]
        return _KINDS.get(plain)

    @property
    def runs_with_mirostat(self) -> bool:
        """True if the option also has an effect with Mirostat, which replaces all samplers except temperature."""
        return self.sampler is None or self.name == "temperature"

    def to_form(self) -> dict[str, Any]:
        """Return the declaration for the form of the web page."""
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
    """Return a dataclass field with its declaration; `row` has fields of Option."""
    metadata = {"option": {"help": help, **row}}
    if factory is not None:
        return dataclasses.field(default_factory=factory, hash=hash, metadata=metadata)
    return dataclasses.field(default=default, hash=hash, metadata=metadata)


def options_of(params: type) -> dict[str, Option]:
    """Return the declarations of SamplingParams or a subclass, by name."""
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


def read_typed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of SamplingParams for typed values. Raises RequestError for a value in another form."""
    found = dict(given)
    if found.get("seed") == -1:
        del found["seed"]
    if isinstance(found.get("samplers"), str):
        found["samplers"] = tuple(_sampler(name) for name in re.split(r"[;,]\s*", found["samplers"].strip(";, ")))
    if "logit_bias" in found:
        found["logit_bias"] = dict(map(_bias, found["logit_bias"]))
    if "dry_sequence_breakers" in found and tuple(found["dry_sequence_breakers"]) == ("none",):
        found["dry_sequence_breakers"] = ()
    if found.get("n_keep") and not found.get("context_shift"):
        warnings.warn("--keep has no effect without --context-shift", stacklevel=2)
        del found["n_keep"]
    return found


# llama.cpp's other names of samplers.
_SAMPLERS = {
    "min-p": "min_p",
    "nucleus": "top_p",
    "temp": "temperature",
    "top-k": "top_k",
    "top-n-sigma": "top_n_sigma",
    "top-nsigma": "top_n_sigma",
    "top-p": "top_p",
    "typ-p": "typ_p",
    "typical": "typ_p",
    "typical-p": "typ_p",
    "typical_p": "typ_p",
}


def _sampler(name: str) -> str:
    return _SAMPLERS.get(name.strip().lower(), name)


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+|inf))", text.strip())
    if found is None or found[2] == "+inf":
        raise RequestError(
            f"logit_bias is {text!r}; expected a token id and its bias, such as 504+1 or 504-inf", field="logit_bias"
        )
    return int(found[1]), float(found[2])
