"""Tools and toolConfig of Gemini's API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from woolly.chat import Tool, ToolChoice
from woolly.serving.dialects.gemini.contents import Camel
from woolly.serving.dialects.gemini.schema import json_schema
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")


class FunctionDeclaration(Camel):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="Schema in Google's format.")
    parameters_json_schema: dict[str, Any] | None = None
    response: Any = Field(None, description="Accepted without effect.")
    response_json_schema: Any = Field(None, description="Accepted without effect.")
    behavior: str | None = Field(None, description="Accepted without effect.")


class ToolSpec(Camel):
    """Functions; tools that run on Google's servers are ignored."""

    model_config = ConfigDict(extra="allow")

    function_declarations: Items[FunctionDeclaration] | None = None


class FunctionCallingConfig(Camel):
    """Function calling mode: AUTO, ANY or NONE."""

    mode: str | None = None
    allowed_function_names: list[str] | None = None
    stream_function_call_arguments: bool | None = Field(None, description="Accepted; calls are sent complete.")


class ToolConfig(Camel):
    """Options of tool use."""

    function_calling_config: FunctionCallingConfig | None = None
    retrieval_config: Any = Field(None, description="Accepted without effect.")


def read_choice(specs: Sequence[ToolSpec], config: ToolConfig | None) -> ToolChoice:
    """Return the allowed and required tools. Raises ApiError if the fields contradict each other."""
    calling = (config and config.function_calling_config) or FunctionCallingConfig.model_validate({})
    mode = (calling.mode or "AUTO").upper()
    mode = "AUTO" if mode == "MODE_UNSPECIFIED" else mode
    where = "toolConfig.functionCallingConfig"
    if mode not in _MODES:
        raise invalid_param(f"{where}.mode", f"expected one of: {', '.join(_MODES)}, but got {mode[:40]!r}")
    tools = _tools(specs, is_strict=mode == "VALIDATED")
    if mode == "ANY" and not tools:
        raise invalid_param(f"{where}.mode", "'ANY' needs at least one function")
    if mode == "NONE" or not tools:
        return ToolChoice(tools, "none")
    names = calling.allowed_function_names or []
    for name in names:
        if all(tool.name != name for tool in tools):
            raise invalid_param(f"{where}.allowedFunctionNames", f"unknown function {name[:80]!r}")
    return ToolChoice(tools, "required" if mode == "ANY" else "auto", frozenset(names) or None)


def _tools(specs: Sequence[ToolSpec], *, is_strict: bool) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for i, spec in enumerate(specs):
        for name, value in (spec.model_extra or {}).items():
            if value is not None:
                ignore(f"tools.{name[:40]} (runs on Google's servers only)")
        for j, given in enumerate(spec.function_declarations or ()):
            where = f"tools.{i}.functionDeclarations.{j}"
            if not _NAME.fullmatch(given.name):
                raise invalid_param(
                    f"{where}.name", f"invalid name {given.name[:40]!r}; use up to 128 letters, digits, _ . : -"
                )
            if any(tool.name == given.name for tool in tools):
                raise invalid_param(f"{where}.name", f"two functions are named {given.name!r}; use unique names")
            schema = given.parameters_json_schema
            if schema is None and given.parameters is not None:
                schema = json_schema(given.parameters, f"{where}.parameters")
            if schema is not None and (kind := schema.get("type", "object")) != "object":
                raise invalid_param(f"{where}.parameters", f"expected type 'object', but got {str(kind)[:40]!r}")
            tools.append(Tool(given.name, given.description, schema, is_strict))
    return tuple(tools)
