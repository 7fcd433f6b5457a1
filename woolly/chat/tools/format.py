"""Formats: how a model writes its calls, recognised by what its chat template contains."""

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
    """Marks around calls, and how one is laid out between them.

    In every format a JSON object at the very start of an answer is a call if it names a tool that was given, for
    the marks of some vocabularies are control tokens that models leave out.
    """

    name: str
    # Marks: what opens a call or several, and what closes them; the first is written.
    marks: tuple[tuple[str, str], ...]
    reason: str = ""  # why a row is needed, although formats are derived
    signs: tuple[str, ...] = ()  # texts of which a template of this format has all
    token: str = ""  # a control token that only vocabularies of this format have
    # How a call is written: by a label, by tags or as Python; else as an object of JSON.
    label: Label | None = None
    tags: Tags | None = None
    is_python: bool = False
    names: str = "name"  # the keys of an object that the model was trained on
    arguments: str = "arguments"
    is_numbered: bool = False  # an object begins with its number, as "tool_call_id"
    is_keyed: bool = False  # an object has one key, the tool's name, whose value are the arguments
    # Text of an object before the name, between name and arguments, and after them.
    frame: tuple[str, str, str] = ("", "", "")
    is_list: bool = False  # calls are in an array
    # Several objects in one pair of marks: what is before, between and after them.
    group: tuple[str, str, str] | None = None
    is_single: bool = False  # one call per answer
    is_bare: bool = False  # calls are written without marks, but marks are accepted
    section: tuple[str, str] = ("", "")  # marks around all calls
    gaps: tuple[str, str] = ("", "")  # written after the mark that opens the section, and before the one that closes it
    text_end: str = ""  # written after a text that calls follow, and before calls without a text
    example: str = ""  # one call, as the template shows it
    between: str = "\n"  # written between two calls
    # Written after the mark that opens a call, and before the one that closes it.
    padding: tuple[str, str] = ("\n", "\n")
    lead: str = ""  # before a call, with the tool's name as {name}: the header of a message to the tool
    opened: str = ""  # what opens a call, where the prompt ends with it
    id_length: int | None = None  # of ids that the template accepts; None: OpenAI's own kind
    loose: tuple[tuple[str, str], ...] = ()  # as marks, but ordinary text has them too: a tool's name decides

    def with_marks(self, other: Format) -> Format:
        """Return the format with the marks of another one, which are accepted and not written."""
        return replace(self, marks=other.marks, loose=other.loose, is_bare=True)


def read_formats(source: Path | Mapping[str, Any] | Sequence[Any]) -> tuple[Format, ...]:
    """Return the formats of a JSON file, or of rows that were read; RequestError if one is not a format."""
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
    """Return a row as a dataclass, with tuples in place of lists."""
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


# Small models write their calls as they write other JSON.
FENCES = (("```json", "```"), ("```", "```"))

# In the order in which their signs are looked for; the last one serves templates that have no other's.
_ROWS = read_formats(Path(__file__).with_name("formats.json"))

FORMATS: dict[str, Format] = {format.name: format for format in _ROWS}


def find_format(template: str, tokenizer: Tokenizer | None = None) -> Format:
    """Return the row whose signs a chat template's source contains, or whose markers are control tokens."""
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
