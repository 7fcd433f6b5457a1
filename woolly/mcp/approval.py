"""Approvals: user decisions about tool calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from woolly.mcp.toolbox import OfferedTool

# Tools that run without asking: none, tools that their server declares read-only, all.
POLICIES = ("ask", "read-only", "all")

Reply = Literal["once", "always", "no", "never"]


class Approvals:
    """Decides on each tool call. The user is not asked again about a tool that is always or never allowed."""

    def __init__(self, policy: str, ask: Callable[[OfferedTool, str], Reply]) -> None:
        """`ask(tool, arguments)` asks the user about calls that the policy does not allow."""
        self._policy = policy
        self._ask = ask
        self._decided: dict[str, bool] = {}

    def allow(self, tool: OfferedTool, arguments: str) -> bool:
        """Return True if a call may run."""
        if (decided := self.decided(tool)) is not None:
            return decided
        reply = self._ask(tool, arguments)
        if reply in ("always", "never"):
            self._decided[tool.name] = reply == "always"
        return reply in ("once", "always")

    def decided(self, tool: OfferedTool) -> bool | None:
        """Return the decision for a tool, or None if the user is asked about each call."""
        if tool.name in self._decided:
            return self._decided[tool.name]
        is_free = self._policy == "all" or (self._policy == "read-only" and tool.is_read_only)
        return True if is_free else None

    def shown(self, tool: OfferedTool) -> str:
        """Return how calls of a tool are decided: always, never or asks."""
        return {True: "always", False: "never", None: "asks"}[self.decided(tool)]
