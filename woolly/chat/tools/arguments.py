"""Grammar rules for formats that write arguments one by one, as tags or as Python, instead of as a JSON object."""

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

Rule = Callable[[str, str], str]  # adds a rule with this name and body, and returns its name
Literal = Callable[[str], str]  # returns an expression for a string that may contain control tokens

# Schema keywords for a complete object or for a string that these rules cannot enforce.
_WHOLE = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "minProperties", "dependentRequired")
_TEXT = ("pattern", "minLength", "maxLength", "format")


@dataclass(frozen=True)
class _Argument:
    key: str
    schema: Mapping[str, Any]
    is_required: bool


def escape(text: str) -> str:
    """Return a regular expression for a string, in slashes."""
    return re.sub(r"([!-;=?-@\[-^`{-~])", r"\\\1", text)


def tagged_call(tags: Tags, i: int, tool: Tool, rule: Rule, literal: Literal) -> str:
    """Return an expression for a call as tags: required arguments, then any others."""
    parts = [literal(tags.name[0] + tool.name + tags.name[1])]
    for j, argument in enumerate(_arguments(tool)):
        before = tags.key[0] + argument.key + tags.key[1] + tags.value[0]
        end = tags.value[1].replace("{key}", argument.key)
        name = f"value_{i}_{j}"
        if tags.types:
            part = f"{literal(before)} {_typed(tags, tool, argument.schema, name, rule, literal)}"
        elif tags.is_element and argument.schema.get("type") in ("array", "object"):
            body = _element(tags, tool, argument.schema, name, rule, literal)
            part = f"{literal(before)} {body} {literal(end)}"
        else:
            part = f"{literal(before)} {_value(tool, argument.schema, end, name, rule, literal)}"
        parts.append(part if argument.is_required else f"({part})?")
    return " ".join([*parts, literal(tags.end)])


def _value(tool: Tool, schema: Mapping[str, Any], end: str, name: str, rule: Rule, literal: Literal) -> str:
    """Add a rule for a value and its end tag. Return the rule's name."""
    options = schema.get("enum")
    if options and is_text(schema):
        return rule(name, f"({' | '.join(map(json.dumps, options))}) {literal(end)}")
    if is_text(schema):
        _refuse(tool, schema, _TEXT)
        # Text cannot match a control token, so it ends before a control token.
        if literal(end.lstrip()).startswith("<["):
            return rule(name, f"/(?s:.*)/ {literal(end)}")
        return rule(f"{name}[lazy]", f"/(?s:.*){escape(end)}/")
    rule(f"{name}_json", f"%json {json.dumps(schema)}")
    return rule(name, f"{name}_json {literal(end)}")


def _typed(tags: Tags, tool: Tool, schema: Mapping[str, Any], name: str, rule: Rule, literal: Literal) -> str:
    """Return an expression for a value after its type. If the schema has no type or several, all types match."""
    kinds = dict(tags.types)
    kind = "string" if is_text(schema) else schema.get("type")
    if isinstance(kind, str) and kind in kinds:
        return f"{literal(kinds[kind])} {_value(tool, schema, tags.value[1], name, rule, literal)}"
    text = _value(tool, {"type": "string"}, tags.value[1], f"{name}_text", rule, literal)
    other = _value(tool, schema, tags.value[1], name, rule, literal)
    others = " | ".join(dict.fromkeys(literal(text) for kind, text in tags.types if kind != "string"))
    return f"({literal(kinds['string'])} {text} | ({others}) {other})"


def _element(tags: Tags, tool: Tool, schema: Mapping[str, Any], name: str, rule: Rule, literal: Literal) -> str:
    """Return an expression for the elements of an array or an object."""
    is_list = schema.get("type") == "array"
    inner = {"item": schema.get("items", {})} if is_list else schema.get("properties", {})
    required = schema.get("required", ())
    parts = []
    for number, (key, below) in enumerate(inner.items()):
        below = below if isinstance(below, Mapping) else {}
        end = tags.value[1].replace("{key}", key)
        before = literal(tags.key[0] + key + tags.key[1])
        if below.get("type") in ("array", "object"):
            part = f"{before} {_element(tags, tool, below, f'{name}_{number}', rule, literal)} {literal(end)}"
        else:
            part = f"{before} {_value(tool, below, end, f'{name}_{number}', rule, literal)}"
        parts.append(f"({part})*" if is_list else part if key in required else f"({part})?")
    return " ".join(parts)


def python_call(i: int, tool: Tool, rule: Rule) -> str:
    """Return an expression for a call as Python: required arguments, then any others."""
    arguments = sorted(_arguments(tool), key=lambda argument: not argument.is_required)
    parts = []
    for j, argument in enumerate(arguments):
        rule(f"value_{i}_{j}_json", f"%json {json.dumps(argument.schema)}")
        rule(f"value_{i}_{j}", " | ".join([f"value_{i}_{j}_json", *_python_forms(argument.schema)]))
        parts.append(f"{json.dumps(argument.key + '=')} value_{i}_{j}")
    n_required = sum(argument.is_required for argument in arguments)
    more = [f'(", " {part})?' for part in parts]
    if n_required:
        body = " ".join(['", " '.join(f"{part} " for part in parts[:n_required]), *more[n_required:]])
    else:
        firsts = [" ".join([part, *more[j + 1 :]]) for j, part in enumerate(parts)]
        body = f"({' | '.join(firsts)})?" if firsts else ""
    return f'{json.dumps(tool.name + "(")} {body} ")"'


def _python_forms(schema: Mapping[str, Any]) -> list[str]:
    """Return an expression for values that Python writes differently from JSON."""
    if any(key in schema for key in ("enum", "const", *_WHOLE, *_TEXT)):
        return []
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    forms = {"string": [r"/'([^'\\\n]|\\.)*'/"], "boolean": ['"True"', '"False"'], "null": ['"None"']}
    return [form for kind in kinds for form in forms.get(kind, [])]


def _arguments(tool: Tool) -> list[_Argument]:
    """Return the arguments of a tool. Raise RequestError if its schema has other constraints."""
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
