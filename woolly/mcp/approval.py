"""Approvals: which tools a person allows, and which never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from woolly.mcp.toolbox import OfferedTool

# What runs without a question: nothing, tools whose server says that they only read, everything.
POLICIES = ("ask", "read-only", "all")

Reply = Literal["once", "always", "no", "never"]


class Approvals:
    """Decides on each call. A tool that a person allows always, or never, is not asked about again."""

    def __init__(self, policy: str, ask: Callable[[OfferedTool, str], Reply]) -> None:
        """`ask(tool, arguments)` asks the person about what the policy does not allow."""
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
        """Return the decision for calls of a tool; None if the user is asked about each."""
        if tool.name in self._decided:
            return self._decided[tool.name]
        is_free = self._policy == "all" or (self._policy == "read-only" and tool.is_read_only)
        return True if is_free else None

    def shown(self, tool: OfferedTool) -> str:
        """Returns how calls of a tool are decided, in a word or two."""
        return {True: "always", False: "never", None: "asks"}[self.decided(tool)]
