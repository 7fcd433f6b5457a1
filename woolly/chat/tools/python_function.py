"""JSON schemas of Python functions, from their type hints and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from woolly.errors import RequestError

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def describe_function(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the name, the description and the JSON schema of the parameters of a function.

    The description is the docstring before its first section; an `Args:` section describes the parameters. Raise
    RequestError for a parameter that has no type hint, or a type without a JSON schema.
    """
    from pydantic import ConfigDict, Field, create_model  # imported late: few requests have functions as tools
    from pydantic.errors import PydanticUserError

    name = function.__name__
    text, arguments = _docstring(inspect.getdoc(function) or "")
    fields: dict[str, Any] = {}
    hints = _hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED:
            raise _rejected(name, f"its parameter {parameter} has no name in a call; use named parameters")
        if parameter.name not in hints:
            raise _rejected(name, f"its parameter {parameter.name} has no type hint; add one, such as str")
        default = ... if parameter.default is parameter.empty else parameter.default
        # By position, because pydantic reserves some names.
        fields[f"field_{len(fields)}"] = (
            hints[parameter.name],
            Field(default, alias=parameter.name, description=arguments.get(parameter.name)),
        )
    try:
        made = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        schema = made.model_json_schema()
    except (PydanticUserError, TypeError) as error:
        raise _rejected(name, f"its parameters have no JSON schema ({str(error).splitlines()[0]})") from None
    schema.pop("title", None)
    for one in schema.get("properties", {}).values():
        one.pop("title", None)
    return {"name": name, **({"description": text} if text else {}), "parameters": {"properties": {}, **schema}}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise _rejected(function.__name__, f"its type hints cannot be resolved ({error})") from None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring and the descriptions of its arguments."""
    parts = _SECTION.split(text)
    found: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Args", "Arguments", "Parameters"):
            continue
        last = None
        for line in body.splitlines():
            if match := _ARGUMENT.match(line):
                last = match[1]
                found[last] = match[2].strip()
            elif last is not None and line.strip():
                found[last] += f" {line.strip()}"
    return parts[0].strip(), found


def _rejected(name: str, reason: str) -> RequestError:
    return RequestError(
        f"tools has the function {name!r}, but {reason}; or pass a mapping with its name and parameters", field="tools"
    )
