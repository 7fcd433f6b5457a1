"""Tools and tool_choice of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from woolly.chat.tools.tool import Tool, ToolChoice
from woolly.serving.dialects.custom_tools import custom_tool
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


class CustomSpec(BaseModel):
    """A tool with free text input."""

    model_config = ConfigDict(extra="forbid")

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None

    def to_tool(self, where: str) -> Tool:
        """Return the function that stands for the tool."""
        format = self.format or {}
        inner = format.get("grammar")
        return custom_tool(
            self.name, self.description, {**format, **inner} if isinstance(inner, dict) else format, where
        )


class ToolSpec(BaseModel):
    """A tool of type function, or of type custom with free text input."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: FunctionSpec | None = None
    custom: CustomSpec | None = None


class FunctionName(BaseModel):
    """The name of a function."""

    model_config = ConfigDict(extra="forbid")

    name: str


class ToolName(BaseModel):
    """A tool by name."""

    model_config = ConfigDict(extra="forbid")

    type: str
    function: FunctionName | None = None
    custom: FunctionName | None = None

    @property
    def named(self) -> str | None:
        """Name of the tool, or None if the type is not supported."""
        given = {"function": self.function, "custom": self.custom}.get(self.type)
        return None if given is None else given.name


class AllowedTools(BaseModel):
    """Allowed subset of the tools."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["auto", "required"]
    tools: Items[ToolName]


class ChoiceSpec(ToolName):
    """Required tool, or a list of allowed tools."""

    allowed_tools: AllowedTools | None = None


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
    if choice.named is not None:
        return ToolChoice(given, "required", _known([choice.named], names), False)
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        if any(tool.named is None for tool in allowed.tools):
            raise invalid_param("tool_choice", "only tools of type 'function' or 'custom' are supported")
        only = _known([tool.named for tool in allowed.tools if tool.named is not None], names)
        return ToolChoice(given, allowed.mode, only, is_parallel)
    raise invalid_param("tool_choice", f"unsupported type {choice.type[:40]!r}; use 'function' with a name")


def custom_names(specs: Sequence[ToolSpec] | None) -> frozenset[str]:
    """Return the names of the custom tools."""
    return frozenset(spec.custom.name for spec in specs or () if spec.type == "custom" and spec.custom is not None)


def _tools(specs: Sequence[ToolSpec]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, spec in enumerate(specs):
        where = f"tools.{i}"
        if spec.type not in ("function", "custom"):
            raise invalid_param(where, f"unsupported type {spec.type[:40]!r}; use 'function' with a function")
        function = spec.custom if spec.type == "custom" else spec.function
        if function is None:
            raise invalid_param(where, f"missing `{spec.type}`; expected an object with a name")
        if not _NAME.fullmatch(function.name):
            raise invalid_param(
                f"{where}.{spec.type}.name",
                f"invalid name {function.name[:40]!r}; use up to 128 letters, digits, _ . -",
            )
        if any(tool.name == function.name for tool in tools):
            raise invalid_param(f"{where}.{spec.type}.name", f"two tools are named {function.name!r}; use unique names")
        if isinstance(function, CustomSpec):
            tools.append(function.to_tool(where))
            continue
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
