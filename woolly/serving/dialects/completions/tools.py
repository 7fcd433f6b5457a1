"""Tools and tool_choice of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from woolly.chat.tools.tool import Tool, ToolChoice
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class FunctionSpec(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(BaseModel):
    """A tool of type function; other types are not supported."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: FunctionSpec | None = None
    custom: dict[str, Any] | None = None


class FunctionName(BaseModel):
    """The name of a function."""

    model_config = ConfigDict(extra="forbid")

    name: str


class ToolName(BaseModel):
    """A tool by name."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: FunctionName | None = None
    custom: dict[str, Any] | None = None


class AllowedTools(BaseModel):
    """Allowed subset of the tools."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["auto", "required"]
    tools: Items[ToolName]


class ChoiceSpec(BaseModel):
    """Required tool, or a list of allowed tools."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None
    custom: dict[str, Any] | None = None


def read_choice(tools: Sequence[ToolSpec] | None, choice: str | ChoiceSpec | None, parallel: bool | None) -> ToolChoice:
    """Return the allowed and required tools. Raises ApiError if the fields contradict each other."""
    given = _tools(tools or ())
    names = {tool.name for tool in given}
    is_parallel = parallel is not False
    if choice is None:
        choice = "auto" if given else "none"
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise invalid_param("tool_choice", f"expected 'none', 'auto', 'required' or a tool, but got {choice!r}")
        if choice == "required" and not given:
            raise invalid_param("tool_choice", "'required' needs at least one tool")
        mode: Any = choice if given else "none"
        return ToolChoice(given, mode, None, is_parallel)
    if choice.type == "function" and choice.function is not None:
        return ToolChoice(given, "required", _known([choice.function.name], names), False)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        if not all(tool.type == "function" and tool.function is not None for tool in allowed.tools):
            raise invalid_param("tool_choice", "only tools of type 'function' are supported")
        only = _known([tool.function.name for tool in allowed.tools if tool.function is not None], names)
        return ToolChoice(given, allowed.mode, only, is_parallel)
    raise invalid_param("tool_choice", f"unsupported type {choice.type[:40]!r}; use 'function' with a name")


def _tools(specs: Sequence[ToolSpec]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, spec in enumerate(specs):
        where = f"tools.{i}"
        if spec.type != "function":
            raise invalid_param(where, f"unsupported type {spec.type[:40]!r}; use 'function' with a function")
        if spec.function is None:
            raise invalid_param(where, "missing `function`; expected an object with a name")
        function = spec.function
        if not _NAME.fullmatch(function.name):
            raise invalid_param(
                f"{where}.function.name", f"invalid name {function.name[:40]!r}; use up to 128 letters, digits, _ . -"
            )
        if any(tool.name == function.name for tool in tools):
            raise invalid_param(f"{where}.function.name", f"two tools are named {function.name!r}; use unique names")
        kind = (function.parameters or {}).get("type", "object")
        if kind != "object":
            raise invalid_param(f"{where}.function.parameters", f"expected type 'object', but got {str(kind)[:40]!r}")
        tools.append(Tool(function.name, function.description, function.parameters, bool(function.strict)))
    return tuple(tools)


def _known(wanted: Sequence[str], names: set[str]) -> frozenset[str]:
    for name in wanted:
        if name not in names:
            raise invalid_param("tool_choice", f"unknown tool {name[:80]!r}")
    if not wanted:
        raise invalid_param("tool_choice", "the list of allowed tools is empty; use 'none' instead")
    return frozenset(wanted)
