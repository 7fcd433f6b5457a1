"""Settings for the sampling defaults of requests, one for each option of SamplingParams that has a flag."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.sampling import SamplingParams, options_of
from woolly.sampling.option import Option, read_typed
from woolly.serving.settings.row import setting
from woolly.serving.settings.value_parsers import text_of

_GROUP = "Defaults of a request"
# Options whose settings have llama-server's names.
_NAMES = {"temperature": "temp"}
# Options that have a row in the table of settings, because their values have other forms there.
_ELSEWHERE = ("max_tokens", "seed", "reasoning_budget", "reasoning_budget_message")
# Options without a flag of commands that have one here.
_FLAGS = {"stop": "-r --reverse-prompt --stop", "context_shift": "--context-shift/--no-context-shift"}


# Options by setting.
SAMPLING_ROWS = {
    _NAMES.get(name, name): row
    for name, row in options_of(SamplingParams).items()
    if (row.flags or name in _FLAGS) and name not in _ELSEWHERE
}

# Lists whose strings may contain commas, so they are not split.
WHOLE_TEXTS = tuple(name for name, row in SAMPLING_ROWS.items() if row.kind == list[str])


def _field(name: str, row: Option) -> tuple[str, Any, Any]:
    flags = _FLAGS.get(row.name, row.flags)
    if row.form == "names":
        return name, str, setting(";".join(row.default), flags, row.help, group=_GROUP)
    if row.form == "json" or row.kind == list[str]:
        more = " Typed as ID+BIAS or ID-BIAS; several." if row.form == "json" else " Several."
        default = () if row.form == "json" else row.default
        shown = " ".join(map(repr, default)) or "none"
        return name, tuple[str, ...], setting(default, flags, row.help + more, shown, group=_GROUP)
    return name, row.kind, setting(row.default, flags, row.help, row.shown or None, group=_GROUP)


# Structures of answers, for requests that set none and offer no tools.
_STRUCTURES = {
    "json_schema": ("--json-schema", "JSON schema of answers: a file, or JSON text."),
    "grammar": ("--grammar", "GBNF grammar of answers: a file, or the grammar itself."),
}

if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class SamplingSettings:
        """Fields that Settings inherits."""

        temp: float = 0.8
        grammar: str | None = None
        json_schema: str | None = None

else:
    SamplingSettings = make_dataclass(
        "SamplingSettings",
        [
            *(_field(name, row) for name, row in SAMPLING_ROWS.items()),
            *((name, str | None, setting(None, *row, "none", group=_GROUP)) for name, row in _STRUCTURES.items()),
        ],
        frozen=True,
        kw_only=True,
    )


def sampling_of(settings: SamplingSettings) -> dict[str, Any]:
    """Return fields of SamplingParams. Raises RequestError for a value in another form."""
    return read_typed({row.name: getattr(settings, name) for name, row in SAMPLING_ROWS.items()})


def structure_of(settings: SamplingSettings) -> dict[str, Any]:
    """Return the field of SamplingParams for --json-schema or --grammar, from its file or text."""
    if settings.json_schema is not None and settings.grammar is not None:
        raise RequestError(
            "json_schema and grammar cannot be combined; set one of them",
            field="grammar",
            names=("json_schema", "grammar"),
        )
    if settings.grammar is not None:
        text = settings.grammar
        return {"grammar": text if "::=" in text else text_of("grammar", Path(text))}
    if settings.json_schema is None:
        return {}
    text = settings.json_schema
    is_inline = text.lstrip().startswith("{") or text.strip() in ("true", "false")
    try:
        return {"json_schema": json.loads(text if is_inline else text_of("json_schema", Path(text)))}
    except ValueError as error:
        where = "is neither a file nor JSON" if is_inline else f"is {text}, which is not JSON"
        raise RequestError(f"json_schema {where}: {error}", field="json_schema") from None
