"""Tools and tool_choice as Anthropic's clients send them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from woolly.chat import Tool, ToolChoice
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class ToolSpec(BaseModel):
    """Tool. One without a schema runs on Anthropic's servers, and is ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = Field(None, description="Whether a grammar holds the arguments to the schema.")


class ToolChoiceSpec(BaseModel):
    """Tool choice: auto, any, none or a named tool."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def read_choice(specs: Sequence[ToolSpec], choice: ToolChoiceSpec | None) -> ToolChoice:
    """Return the allowed and the required tools; ApiError if the fields contradict each other."""
    tools = _tools(specs)
    kind = "auto" if choice is None else choice.type
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    if kind in ("any", "tool") and not tools:
        raise invalid_param("tool_choice", f"it is {kind!r}, but there are no tools")
    if kind == "none" or not tools:
        return ToolChoice(tools, "none")
    if kind == "tool":
        name = choice.name if choice is not None and choice.name is not None else ""
        if all(tool.name != name for tool in tools):
            raise invalid_param("tool_choice.name", f"it is {name[:80]!r}, which is not among the tools")
        return ToolChoice(tools, "required", frozenset([name]), False)
    return ToolChoice(tools, "required" if kind == "any" else "auto", None, is_parallel)


def _tools(specs: Sequence[ToolSpec]) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, spec in enumerate(specs):
        where = f"tools.{i}"
        if spec.input_schema is None:
            if spec.type in (None, "custom"):
                raise invalid_param(f"{where}.input_schema", "a tool needs the schema of its input")
            ignore(f"tools ({spec.type[:40] if spec.type else ''} runs on Anthropic's servers only)")
            continue
        if not _NAME.fullmatch(spec.name):
            raise invalid_param(
                f"{where}.name", f"{spec.name[:40]!r} is not a name; up to 128 letters, digits, _ . - are"
            )
        if any(tool.name == spec.name for tool in tools):
            raise invalid_param(f"{where}.name", f"there are two tools named {spec.name!r}")
        if (kind := spec.input_schema.get("type", "object")) != "object":
            raise invalid_param(f"{where}.input_schema", f"an input is an object, not {str(kind)[:40]!r}")
        tools.append(Tool(spec.name, spec.description, spec.input_schema, bool(spec.strict)))
    return tuple(tools)
