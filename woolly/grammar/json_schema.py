"""JSON schemas: translation to grammars of llguidance. Rejects schemas that grammars cannot enforce exactly."""

from __future__ import annotations

import json
from typing import Any

from woolly.errors import RequestError
from woolly.grammar.schema.budget import budget
from woolly.grammar.schema.documents import Documents
from woolly.grammar.schema.plain import plain_schema
from woolly.grammar.schema.writer import Writer

MAX_SOURCE = 1 << 20
MAX_LARK = 4 << 20  # characters of the grammar that a schema makes; 1 MB compiles in 0.3 s
_OPTIONS = ("x-whitespace", "x-documents")
_TOO_DEEP = "the JSON schema is nested too deeply; the maximum is 128 levels"
_LAYOUTS = {  # separators of items and of names, and further lines of Lark
    # At most one space, after a comma or a colon. Small models that may begin a new line often never end it.
    "compact": ("/, ?/", "/: ?/", ""),
    # One space, or at most two newlines and an indentation.
    "indented": ('","', '":"', '\n%llguidance {"ignore_once": true}\n%ignore /\\x20|\\r?\\n{1,2}[\\x20\\t]{0,40}/'),
}
_PLAIN_LAYOUTS: dict[str, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"},
    "indented": {"whitespace_pattern": r"\x20|\r?\n{1,2}[\x20\t]{0,40}"},
}


def prepare_schema(source: str) -> dict[str, Any]:
    """Return the schema as a grammar of llguidance. Raise RequestError if it cannot be enforced exactly."""
    if len(source) > MAX_SOURCE:
        raise RequestError(f"the JSON schema has {len(source)} characters; the maximum is {MAX_SOURCE}")
    try:
        schema = json.loads(source, parse_constant=_no_constant)
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except ValueError as error:
        raise RequestError(f"the JSON schema is not valid JSON: {error}") from None
    return prepare_schema_value(schema)


def prepare_schema_value(schema: Any) -> dict[str, Any]:
    """Return a parsed schema as a grammar of llguidance."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise RequestError(f"a JSON schema must be an object, not {json.dumps(schema)[:40]}")
    layout = schema.get("x-whitespace", "compact")
    if not isinstance(layout, str) or layout not in _LAYOUTS:
        raise RequestError(f"the JSON schema has x-whitespace {json.dumps(layout)[:40]}; expected compact or indented")
    documents = schema.get("x-documents", {})
    if not isinstance(documents, dict):
        raise RequestError("the JSON schema has x-documents that is not an object; expected schemas by their address")
    draft = schema.get("$schema")
    if isinstance(draft, str) and "json-schema.org/draft-03" in draft:
        raise RequestError("JSON schema draft 3 is not supported; use draft 4, 6, 7, 2019-09 or 2020-12")
    plain = plain_schema({name: value for name, value in schema.items() if name not in _OPTIONS})
    if plain is not None:
        return {"json_schema": plain | {"x-guidance": _PLAIN_LAYOUTS[layout] | {"json_allowed_escapes": 'nrbtf\\"'}}}
    separator, colon, lines = _LAYOUTS[layout]
    try:
        with budget():
            lark = Writer(Documents(schema, documents), separator, colon).write() + lines
    except RecursionError:
        raise RequestError(_TOO_DEEP) from None
    except ValueError as error:  # numbers of too many digits, and addresses that are none
        raise RequestError(f"the JSON schema cannot be used: {str(error)[:200]}") from None
    if len(lark) > MAX_LARK:
        raise RequestError(f"the JSON schema makes a grammar of {len(lark)} characters; the maximum is {MAX_LARK}")
    try:
        lark.encode()
    except UnicodeEncodeError:
        raise RequestError("the JSON schema has a lone surrogate; use complete Unicode characters") from None
    return {"lark_grammar": lark}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
