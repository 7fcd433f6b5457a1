"""Rules for arguments that a format writes one by one, as tags or as Python, instead of one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from woolly.chat.tools.values import is_text
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.chat.tools.tagged_calls import Tags
    from woolly.chat.tools.tool import Tool

Rule = Callable[[str, str], str]  # adds a rule of this name and body, and returns its name
Literal = Callable[[str], str]  # returns what matches a text, parts of which may be control tokens

# Keys of a schema that say something about the whole object, or about a string, which these rules cannot enforce.
_WHOLE = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties", "dependentRequired")
_TEXT = ("pattern", "minLength", "maxLength", "format")


@dataclass(frozen=True)
class _Argument:
    key: str
    schema: Mapping[str, Any]
    is_required: bool


def escape(text: str) -> str:
    """Returns a regular expression of a text, within slashes."""
    return re.sub(r"([!-;=?-@\[-^`{-~])", r"\\\1", text)


def tagged_call(tags: Tags, i: int, tool: Tool, rule: Rule, literal: Literal) -> str:
    """Returns what matches a call as tags: the arguments that are required, then any others."""
    line = "\n" if tags.has_lines else ""
    parts = [literal(tags.name[0] + tool.name + tags.name[1] + "\n")]
    for j, argument in enumerate(_arguments(tool)):
        end = line + tags.value[1]
        before = tags.key[0] + argument.key + tags.key[1] + ("\n" if tags.value[0] else "") + tags.value[0] + line
        name = f"value_{i}_{j}"
        options = argument.schema.get("enum")
        if options and is_text(argument.schema):
            rule(name, f"({' | '.join(map(json.dumps, options))}) {literal(end)}")
        elif is_text(argument.schema):
            _refuse(tool, argument.schema, _TEXT)
            # Text cannot match a control token, so that it ends before one.
            if literal(tags.value[1]).startswith("<["):
                rule(name, f"/(?s:.*)/ {literal(tags.value[1])}")
            else:
                rule(f"{name}[lazy]", f"/(?s:.*){escape(end)}/")
        else:
            rule(f"{name}_json", f"%json {json.dumps(argument.schema)}")
            rule(name, f"{name}_json {literal(end)}")
        part = f'{literal(before)} {name} "\\n"'
        parts.append(part if argument.is_required else f"({part})?")
    return " ".join([*parts, literal(tags.end)])


def python_call(i: int, tool: Tool, rule: Rule) -> str:
    """Returns what matches a call as Python: the arguments that are required, then any others."""
    arguments = sorted(_arguments(tool), key=lambda argument: not argument.is_required)
    parts = []
    for j, argument in enumerate(arguments):
        rule(f"value_{i}_{j}", f"%json {json.dumps(argument.schema)}")
        parts.append(f"{json.dumps(argument.key + '=')} value_{i}_{j}")
    n_required = sum(argument.is_required for argument in arguments)
    more = [f'(", " {part})?' for part in parts]
    if n_required:
        body = " ".join(['", " '.join(f"{part} " for part in parts[:n_required]), *more[n_required:]])
    else:
        firsts = [" ".join([part, *more[j + 1 :]]) for j, part in enumerate(parts)]
        body = f"({' | '.join(firsts)})?" if firsts else ""
    return f'{json.dumps(tool.name + "(")} {body} ")"'


def _arguments(tool: Tool) -> list[_Argument]:
    """Returns the arguments of a tool; RequestError if its schema says more than which there are."""
    schema = tool.schema
    _refuse(tool, schema, _WHOLE)
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = list(schema.get("required", ()))
    properties: dict[str, Any] = {key: {} for key in required} | dict(schema.get("properties", {}))
    return [
        _Argument(key, {**value, **shared} if isinstance(value, Mapping) else {}, key in required)
        for key, value in properties.items()
    ]


def _refuse(tool: Tool, schema: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in schema:
            raise RequestError(
                f"the schema of the tool {tool.name[:80]!r} has {key!r}, which cannot be enforced in the way in which "
                'this model writes calls; leave it out, or leave strict out and tool_choice at "auto"',
                field="tools",
                code="grammar",
            )
