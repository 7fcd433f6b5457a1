"""Tools and tool_choice of Anthropic's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import Tool, ToolChoice
from woolly.serving.dialects.anthropic.client_tools import client_tool
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class ToolSpec(BaseModel):
    """A tool. Anthropic's client tools have known schemas; other tools without a schema run on Anthropic's servers and
    are ignored.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Enforce the schema of the arguments.")


class ToolChoiceSpec(BaseModel):
    """Tool choice: auto, any, none or a named tool."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def read_choice(specs: Sequence[ToolSpec], choice: ToolChoiceSpec | None) -> ToolChoice:
    """Return the allowed and required tools. Raises ApiError if the fields contradict each other."""
    tools = _tools(specs)
    kind = "auto" if choice is None else choice.type
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    if kind in ("any", "tool") and not tools:
        raise invalid_param("tool_choice", f"{kind!r} needs at least one tool")
    if kind == "none" or not tools:
        return ToolChoice(tools, "none")
    if kind == "tool":
        name = choice.name if choice is not None and choice.name is not None else ""
        if all(tool.name != name for tool in tools):
            raise invalid_param("tool_choice.name", f"unknown tool {name[:80]!r}")
        return ToolChoice(tools, "required", frozenset([name]), False)
    return ToolChoice(tools, "required" if kind == "any" else "auto", None, is_parallel)


def _tools(specs: Sequence[ToolSpec]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, spec in enumerate(specs):
        where, known = f"tools.{i}", None
        if spec.input_schema is None:
            if spec.type in (None, "custom"):
                raise invalid_param(f"{where}.input_schema", "missing; a tool needs the schema of its input")
            known = client_tool(spec.type, spec.name, spec.model_extra or {})
            if known is None:
                ignore(f"tools ({spec.type[:40]} runs on Anthropic's servers only)")
                continue
        if not _NAME.fullmatch(spec.name):
            raise invalid_param(
                f"{where}.name", f"invalid name {spec.name[:40]!r}; use up to 128 letters, digits, _ . -"
            )
        if any(tool.name == spec.name for tool in tools):
            raise invalid_param(f"{where}.name", f"two tools are named {spec.name!r}; use unique names")
        if spec.input_schema is None:
            tools += [] if known is None else [known]
            continue
        if (kind := spec.input_schema.get("type", "object")) != "object":
            raise invalid_param(f"{where}.input_schema", f"expected type 'object', but got {str(kind)[:40]!r}")
        tools.append(Tool(spec.name, spec.description, spec.input_schema, bool(spec.strict)))
    return tuple(tools)
