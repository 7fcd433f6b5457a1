"""Tools: functions that a model may call, and which of them it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Tool", "ToolChoice"]


@dataclass(frozen=True)
class Tool:
    """One function, with the JSON schema of its arguments."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None  # None: it takes no arguments
    strict: bool = False  # its arguments must follow the schema to the letter

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its arguments, which are an object."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.parameters}

    def to_json(self) -> dict[str, Any]:
        """As chat templates and prompts show it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.schema if self.parameters is None else dict(self.parameters)
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolChoice:
    """The tools that may be called, and whether one must be."""

    tools: Sequence[Tool] = field(default_factory=tuple)
    mode: Literal["none", "auto", "required"] = "none"
    only: frozenset[str] | None = None  # names that may be called; None: all
    is_parallel: bool = True  # several calls in one answer

    @property
    def callable(self) -> tuple[Tool, ...]:
        """Those that may be called."""
        return tuple(tool for tool in self.tools if self.only is None or tool.name in self.only)

    @property
    def is_enforced(self) -> bool:
        """Whether a grammar is needed to keep what was promised."""
        if self.mode == "none":
            return False
        return self.mode == "required" or self.only is not None or any(tool.strict for tool in self.callable)
