"""Tools and tool_choice of OpenAI's Responses API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from woolly.chat import Tool, ToolChoice
from woolly.serving.dialects.custom_tools import custom_tool
from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


@dataclass(frozen=True)
class RequestTools:
    """Tools for the model, with the client's names."""

    tools: tuple[Tool, ...] = ()
    customs: frozenset[str] = frozenset()  # names of tools with free text input
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name for the model -> (namespace, name)


def split_name(toolbox: RequestTools, name: str) -> dict[str, str]:
    """Return the fields of a call that name its tool."""
    if name in toolbox.namespaces:
        namespace, own = toolbox.namespaces[name]
        return {"name": own, "namespace": namespace}
    return {"name": name}


def read_tools(given: Sequence[Mapping[str, Any]]) -> RequestTools:
    """Return the callable tools. Tools that run on OpenAI's servers are ignored and reported."""
    tools: list[Tool] = []
    customs: set[str] = set()
    namespaces: dict[str, tuple[str, str]] = {}
    for i, spec in enumerate(given):
        where, kind = f"tools.{i}", spec.get("type")
        if kind == "function":
            tools.append(_function(spec, where))
        elif kind == "custom":
            tools.append(custom_tool(_name(spec, where), spec.get("description"), spec.get("format"), where))
            customs.add(tools[-1].name)
        elif kind == "namespace":
            namespace = _name(spec, where)
            for j, inner in enumerate(_listed(spec.get("tools"), f"{where}.tools")):
                if inner.get("type") != "function":
                    ignore(f"{where}.tools.{j} (only functions are supported)")
                    continue
                own = _function(inner, f"{where}.tools.{j}")
                name = f"{namespace}.{own.name}"
                tools.append(Tool(name, own.description, own.parameters, own.strict))
                namespaces[name] = (namespace, own.name)
        elif isinstance(kind, str):
            ignore(f"{where} ({kind[:40]} runs on OpenAI's servers only)")
        else:
            raise invalid_param(f"{where}.type", "missing; a tool needs a type such as 'function'")
    names = [tool.name for tool in tools]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise invalid_param("tools", f"two tools are named {twice!r}; use unique names")
    return RequestTools(tuple(tools), frozenset(customs), namespaces)


def read_choice(toolbox: RequestTools, choice: str | Mapping[str, Any] | None, parallel: bool | None) -> ToolChoice:
    """Return the allowed and required tools. Raises ApiError if the fields contradict each other."""
    tools, is_parallel = toolbox.tools, parallel is not False
    if choice is None or isinstance(choice, str):
        if choice not in (None, "none", "auto", "required"):
            raise invalid_param(
                "tool_choice", f"expected 'none', 'auto', 'required' or a tool, but got {choice[:40]!r}"
            )
        if choice == "required" and not tools:
            raise invalid_param("tool_choice", "'required' needs at least one callable tool")
        mode: Any = (choice or "auto") if tools else "none"
        return ToolChoice(tools, mode, None, is_parallel)
    if choice.get("type") in ("function", "custom"):
        return ToolChoice(tools, "required", _known([choice], toolbox), False)
    if choice.get("type") == "allowed_tools":
        allowed = _listed(choice.get("tools"), "tool_choice.tools")
        wanted: Literal["auto", "required"] = "required" if choice.get("mode") == "required" else "auto"
        return ToolChoice(tools, wanted, _known(allowed, toolbox), is_parallel)
    raise invalid_param("tool_choice", f"unsupported type {str(choice.get('type'))[:40]!r}; use 'function' with a name")


def _function(spec: Mapping[str, Any], where: str) -> Tool:
    parameters, description = spec.get("parameters"), spec.get("description")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise invalid_param(f"{where}.parameters", "expected a JSON schema")
    if (kind := (parameters or {}).get("type", "object")) != "object":
        raise invalid_param(f"{where}.parameters", f"expected type 'object', but got {str(kind)[:40]!r}")
    text = description if isinstance(description, str) else None
    return Tool(_name(spec, where), text, dict(parameters) if parameters else None, spec.get("strict") is True)


def _name(spec: Mapping[str, Any], where: str) -> str:
    name = spec.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid_param(f"{where}.name", f"invalid name {str(name)[:40]!r}; use up to 128 letters, digits, _ . -")
    return name


def _listed(value: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise invalid_param(where, "expected a list of tools")
    return value


def _known(wanted: Sequence[Mapping[str, Any]], toolbox: RequestTools) -> frozenset[str]:
    known = {tool.name for tool in toolbox.tools}
    names = []
    for one in wanted:
        name, namespace = str(one.get("name", "")), one.get("namespace")
        names.append(f"{namespace}.{name}" if isinstance(namespace, str) else name)
        if names[-1] not in known:
            raise invalid_param("tool_choice", f"unknown tool {names[-1][:80]!r}")
    if not names:
        raise invalid_param("tool_choice", "the list of allowed tools is empty; use 'none' instead")
    return frozenset(names)
