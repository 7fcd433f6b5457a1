"""Call formats of models, recognized by strings in the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.chat.tools.labeled_calls import Label
from woolly.chat.tools.tagged_calls import Tags
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.tokens import Tokenizer


@dataclass(frozen=True)
class Format:
    """Markers around calls, and the layout of a call between them.

    In every format, a JSON object at the start of an answer is a call if it contains the name of a tool of the request,
    because models may omit markers that are control tokens.
    """

    name: str
    # Start and end markers of one or several calls. The first pair is used in prompts and grammars.
    marks: tuple[tuple[str, str], ...]
    reason: str = ""  # why an entry is needed, although formats are derived
    signs: tuple[str, ...] = ()  # strings that all occur in a template of this format
    token: str = ""  # a control token that only vocabularies of this format have
    # Calls are written with a label, with tags or as Python; otherwise as a JSON object.
    label: Label | None = None
    tags: Tags | None = None
    is_python: bool = False
    names: str = "name"  # the keys of an object that the model was trained on
    arguments: str = "arguments"
    is_numbered: bool = False  # an object begins with its number, as "tool_call_id"
    is_keyed: bool = False  # an object has a single key, the tool's name, with the arguments as its value
    # Strings of an object before the name, between name and arguments, and after the arguments.
    frame: tuple[str, str, str] = ("", "", "")
    is_list: bool = False  # calls are in an array
    # Strings before, between and after several objects in one pair of markers.
    group: tuple[str, str, str] | None = None
    is_single: bool = False  # one call per answer
    is_bare: bool = False  # calls are written without markers, but markers are accepted
    section: tuple[str, str] = ("", "")  # markers around all calls
    gaps: tuple[str, str] = ("", "")  # strings after the section's start marker and before its end marker
    text_end: str = ""  # string after text before calls, and before calls without text
    example: str = ""  # a call as rendered by the template
    between: str = "\n"  # separator of two calls
    # Strings after the start marker of a call and before its end marker.
    padding: tuple[str, str] = ("\n", "\n")
    lead: str = ""  # header of a message to the tool, before a call, with {name} for the tool's name
    opened: str = ""  # start marker of a call, if the prompt ends with it
    id_length: int | None = None  # length of ids that the template accepts; None: ids in OpenAI's format
    # like marks, but ordinary text also contains them, so a call also needs a known tool name
    loose: tuple[tuple[str, str], ...] = ()

    def with_marks(self, other: Format) -> Format:
        """Return the format with the markers of another format, which are accepted but not written."""
        return replace(self, marks=other.marks, loose=other.loose, is_bare=True)


def read_formats(source: Path | Mapping[str, Any] | Sequence[Any]) -> tuple[Format, ...]:
    """Return the formats in a JSON file or in parsed entries. Raise RequestError for an invalid entry."""
    where = f"{source}: " if isinstance(source, Path) else ""
    rows: Any = source
    if isinstance(source, Path):
        try:
            rows = json.loads(source.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RequestError(f"tool_format: {source} cannot be read: {error}", field="tool_format") from None
    try:
        return tuple(_built(Format, row) for row in ([rows] if isinstance(rows, Mapping) else rows))
    except (TypeError, KeyError, ValueError) as error:
        raise RequestError(
            f"tool_format: {where}a row is not a format of calls: {error}; see woolly/chat/tools/formats.json for rows",
            field="tool_format",
        ) from None


def _built(kind: type[Any], row: Any) -> Any:
    """Return an entry as a dataclass, with tuples instead of lists."""
    if not isinstance(row, Mapping):
        raise TypeError(f"an object was expected, not {type(row).__name__}")
    kinds = {field.name: field for field in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in row.items():
        if key not in kinds:
            raise KeyError(f"unknown key {key!r}")
        inner = {"label": Label, "tags": Tags}.get(key) if kind is Format else None
        values[key] = _built(inner, value) if inner is not None and value is not None else _frozen(value)
        default = kinds[key].default
        expected = str if kinds[key].type == "str" else tuple if isinstance(default, tuple) else None
        if expected is not None and not isinstance(values[key], expected):
            raise TypeError(f"{key} is {value!r}; expected {'a list' if expected is tuple else 'a text'}")
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# Small models write calls like other JSON, in code fences.
FENCES = (("```json", "```"), ("```", "```"))

# In search order. The last format is used if no other format matches.
_ROWS = read_formats(Path(__file__).with_name("formats.json"))

FORMATS: dict[str, Format] = {format.name: format for format in _ROWS}


def find_format(template: str, tokenizer: Tokenizer | None = None) -> Format:
    """Return the format whose signature strings occur in a template's source, or whose markers are control tokens."""
    found = next(format for format in _ROWS if all(sign in template for sign in format.signs))
    if found.signs:
        return found
    if "<|start_header_id|>" in template and re.search(r"[\"']parameters\\?[\"']", template):
        return FORMATS["llama3"]
    if tokenizer is not None:
        from woolly.chat.tools.markers import marker_ids

        by_token = (format for format in _ROWS if format.token and marker_ids(tokenizer, [format.token]))
        return next(by_token, found)
    return found
