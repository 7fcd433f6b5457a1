"""Tools that a model may call, and the tool choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from woolly.errors import RequestError
from woolly.sampling.schema import read_schema

ToolSource = Union["Tool", Mapping[str, Any], Callable[..., Any]]  # a function is described by its type hints

_FIELDS = {"name", "description", "parameters", "strict"}


@dataclass(frozen=True)
class ToolCall:
    """Complete call. `arguments` is JSON text as written by the model."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Tool:
    """Function with the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None  # None: no arguments
    strict: bool = False  # arguments must match the schema exactly

    @classmethod
    def of(cls, given: Mapping[str, Any] | Callable[..., Any]) -> Tool:
        """Read a Python function or a mapping, {"type": "function", "function": {"name": ...}} or its function."""
        if inspect.isroutine(given):
            from woolly.chat.tools.python_function import describe_function

            return cls(**describe_function(given))
        function = given.get("function", given) if isinstance(given, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools has {str(given)[:80]!r}; expected a Python function, or a mapping with the name of a function,"
                ' such as {"type": "function", "function": {"name": "weather", "parameters": {...}}}',
                field="tools",
            )
        fields = {name: value for name, value in function.items() if name != "type"}
        if unknown := sorted(fields.keys() - _FIELDS):
            raise RequestError(f"the tool {fields['name'][:80]!r} has the unknown key {unknown[0]!r}", field="tools")
        if "parameters" in fields:
            fields["parameters"] = read_schema(fields["parameters"])
        return cls(**fields)

    @property
    def schema(self) -> dict[str, Any]:
        """Return the schema of the arguments, which are an object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for chat templates and prompts."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema if self.parameters is None else dict(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolChoice:
    """Tools that may be called, and whether a call is required."""

    tools: Sequence[Tool] = field(default_factory=tuple)
    mode: Literal["none", "auto", "required"] = "none"
    only: frozenset[str] | None = None  # names of callable tools; None: all
    is_parallel: bool = True  # True if an answer may have several calls

    @classmethod
    def of(cls, tools: Sequence[ToolSource], choice: str | None, is_parallel: bool = True) -> ToolChoice:
        """Read tools and a choice: none, auto, required, or the name of a required tool."""
        given = tuple(tool if isinstance(tool, Tool) else Tool.of(tool) for tool in tools)
        names = [tool.name for tool in given]
        if len(set(names)) < len(names):
            raise RequestError("tools has two tools with the same name; rename one of them", field="tools")
        if choice == "none" or (choice in (None, "auto") and not given):
            return cls(given, "none", None, is_parallel)
        if choice in (None, "auto"):
            return cls(given, "auto", None, is_parallel)
        if choice == "required" and given:
            return cls(given, "required", None, is_parallel)
        if choice not in names:
            expected = ", ".join(["none", "auto", *(["required"] if given else []), *names])
            raise RequestError(f"tool_choice is {choice!r}; expected one of: {expected}", field="tool_choice")
        return cls(given, "required", frozenset([choice]), False)

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Tools that may be called."""
        return tuple(tool for tool in self.tools if self.only is None or tool.name in self.only)

    @property
    def is_enforced(self) -> bool:
        """True if a grammar must enforce the choice."""
        if self.mode == "none":
            return False
        return self.mode == "required" or self.only is not None or any(tool.strict for tool in self.callable)
