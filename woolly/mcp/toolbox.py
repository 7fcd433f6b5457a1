"""Toolbox: the tools of all MCP servers, under unique names."""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from woolly.chat import Tool, ToolCall
from woolly.errors import ToolError
from woolly.mcp.config import ServerSpec
from woolly.mcp.connection import ServerConnection
from woolly.mcp.optional_package import check_package
from woolly.mcp.result import ToolResult
from woolly.mcp.sanitize import MAX_DESCRIPTION, sanitize_schema, sanitize_text

if TYPE_CHECKING:
    from mcp.types import Tool as McpTool

_MAX_NAME = 64  # characters; OpenAI's limit, which models are trained with
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_CLOSING = 15.0  # maximum seconds for closing all servers

T = TypeVar("T")


@dataclass(frozen=True)
class OfferedTool:
    """Tool as offered to the model, and its server."""

    tool: Tool
    server: str
    inner_name: str  # name on the server
    is_read_only: bool = False  # as declared by the server

    @property
    def name(self) -> str:
        """Name of the tool in calls by the model."""
        return self.tool.name


@dataclass(frozen=True)
class ServerStatus:
    """State of a server. `reason` explains a failure."""

    name: str
    state: Literal["starting", "up", "failed"] = "starting"
    reason: str | None = None


class Toolbox:
    """Runs MCP servers on an event loop in a separate thread, for synchronous code and other event loops.

    The mcp package is imported when the first server starts. Thread-safe.
    """

    def __init__(self, servers: Sequence[ServerSpec]) -> None:
        """Raise RequestError if the package `mcp` is not installed."""
        check_package()
        self.tools: tuple[OfferedTool, ...] = ()
        self._loop = asyncio.new_event_loop()
        self._connections = {server.name: ServerConnection(server) for server in servers}
        self._statuses = {server.name: ServerStatus(server.name) for server in servers}
        self._offered: dict[str, tuple[OfferedTool, ...]] = {}  # keyed by server
        self._thread = threading.Thread(target=self._loop.run_forever, name="woolly-mcp", daemon=True)
        self._thread.start()

    @property
    def servers(self) -> tuple[ServerStatus, ...]:
        """State of each server."""
        return tuple(self._statuses.values())

    def open(self) -> list[ToolError]:
        """Start all servers concurrently and list their tools. Return the errors of failed servers."""
        starting = [self.start(name) for name in self._connections]
        return [error for one in starting if (error := one.result()) is not None]

    def start(self, name: str) -> Future[ToolError | None]:
        """Start or restart a server in the background. The result is an error if the start failed."""
        self._statuses[name] = ServerStatus(name)
        return self._submit(self._start(name))

    def find(self, name: str) -> OfferedTool:
        """Return the tool with a name. Raise ToolError, with the available names, for an unknown tool."""
        for tool in self.tools:
            if tool.name == name:
                return tool
        names = ", ".join(tool.name for tool in self.tools)
        raise ToolError(f"unknown tool {name[:80]!r}; available tools: {names or 'none'}")

    def begin(self, call: ToolCall) -> Future[ToolResult]:
        """Start a call; cancelling the future ends it. If the call fails, `begin` or the future raises ToolError."""
        tool = self.find(call.name)
        arguments = _arguments(call)
        return self._submit(self._connections[tool.server].call(tool.inner_name, arguments))

    def call(self, call: ToolCall) -> ToolResult:
        """Return the result of a call. Ctrl-C cancels the call."""
        running = self.begin(call)
        try:
            return running.result()
        except KeyboardInterrupt:
            running.cancel()
            raise

    def close(self) -> None:
        """Stop all servers and the thread."""
        if not self._thread.is_alive():
            return
        try:
            self._submit(self._close()).result(_CLOSING)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self, name: str) -> ToolError | None:
        try:
            tools = await self._connections[name].tools()
        except ToolError as error:
            self._statuses[name] = ServerStatus(name, "failed", str(error))
            return error
        # Names of other running servers do not change, because the user may be deciding about a call.
        taken = {tool.name for server, offered in self._offered.items() if server != name for tool in offered}
        self._offered[name] = tuple(_offer(name, tools, taken))
        self.tools = tuple(tool for server in self._connections for tool in self._offered.get(server, ()))
        self._statuses[name] = ServerStatus(name, "up")
        return None

    async def _close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))


def _offer(server: str, tools: Iterable[McpTool], taken: set[str]) -> Iterator[OfferedTool]:
    for tool in tools:
        name = _name_of(server, tool.name, taken)
        taken.add(name)
        hints = tool.annotations
        is_read_only = hints is not None and hints.read_only_hint is True
        about = None if tool.description is None else sanitize_text(tool.description, MAX_DESCRIPTION)
        yield OfferedTool(Tool(name, about, sanitize_schema(tool.input_schema)), server, tool.name, is_read_only)


def _name_of(server: str, tool: str, taken: set[str]) -> str:
    """Return `server_tool` with only valid characters, and with a number if the name is taken."""
    whole = _ODD.sub("_", f"{server}_{tool}")[:_MAX_NAME]
    name, n = whole, 1
    while name in taken:
        n += 1
        end = f"_{n}"
        name = whole[: _MAX_NAME - len(end)] + end
    return name


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments or "{}", parse_constant=_reject_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments of {call.name} are not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ToolError(f"the arguments of {call.name} are {call.arguments[:80]}; expected a JSON object")
    return value


def _reject_constant(constant: str) -> None:
    """Raise ValueError, because Python parses NaN and Infinity, but would send null to servers."""
    raise ValueError(f"{constant} is not a valid JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value
