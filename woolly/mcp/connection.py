"""Connection: one server, from its start to its end. Belongs to the event loop of its Toolbox."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, TextIO

from woolly.errors import ToolError
from woolly.machine.optional_packages import install_command
from woolly.mcp.config import ServerSpec
from woolly.mcp.result import ToolResult
from woolly.mcp.sanitize import sanitize_text

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool

_MAX_PAGES = 50  # of a server's list of tools
_MAX_TOOLS = 500
# A line that is not a message is logged by the package with a traceback; without a handler Python would print it.
logging.getLogger("mcp").addHandler(logging.NullHandler())
_CLOSING = 10.0  # seconds; the mcp package kills a process that does not end after about 4


class ServerConnection:
    """Starts its server at the first need, and again after the server has ended."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[tuple[Client, list[Tool]]] | None = None
        self._closing = asyncio.Event()
        self._tail = _Tail()

    async def tools(self) -> list[Tool]:
        """Returns the server's tools. ToolError if it cannot be started."""
        return (await self._open())[1]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Returns the result of a tool. ToolError if the server refuses the call, is too slow, or ends."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client, _ = await self._open()
        try:
            given = await asyncio.wait_for(client.call_tool(name, dict(arguments)), self.spec.timeout)
        except asyncio.TimeoutError:
            raise self._slow(name) from None
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise self._slow(name) from None
            if error.code == CONNECTION_CLOSED:
                await self.close()
                raise ToolError(
                    f"the MCP server {self.spec.name!r} ended during the call of {name}{self._tail.last()};"
                    " the next call starts it again"
                ) from None
            raise ToolError(
                f"the MCP server {self.spec.name!r} refuses the call of {name}: {_sentence(error)}"
            ) from None
        except Exception as error:  # the mcp package lets errors of HTTP, JSON and validation through
            await self.close()
            raise ToolError(f"the MCP server {self.spec.name!r} failed at {name}: {_sentence(error)}") from None
        return ToolResult.of(given)

    async def close(self) -> None:
        """Ends the server."""
        if (task := self._task) is None:
            return
        self._closing.set()
        if self._client is not None and not self._client.done():
            task.cancel()  # it still starts, and reads no event
        with suppress(asyncio.TimeoutError, asyncio.CancelledError, Exception):
            await asyncio.wait_for(task, _CLOSING)
        self._task = self._client = None

    async def _open(self) -> tuple[Client, list[Tool]]:
        if self._task is not None and self._task.done():  # the server ended between two calls
            self._task = self._client = None
        if self._client is None:
            self._closing = asyncio.Event()
            self._client = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._client, self._closing))
        try:
            return await asyncio.wait_for(asyncio.shield(self._client), self.spec.timeout)
        except asyncio.TimeoutError:
            if self._task is not None:
                self._task.cancel()
            await self.close()
            raise ToolError(
                f"the MCP server {self.spec.name!r} did not answer within {self.spec.timeout:g} s"
                f"{self._tail.last()}; timeout_ms in its entry gives it more time"
            ) from None
        except ToolError:
            self._task = self._client = None
            raise

    async def _run(self, opened: asyncio.Future[tuple[Client, list[Tool]]], closing: asyncio.Event) -> None:
        """Holds the connection: the mcp package wants it opened and closed by one task."""
        try:
            from mcp import Client

            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(
                    Client(await self._transport(stack), read_timeout_seconds=self.spec.timeout)
                )
                tools = await _list_tools(client)
                opened.set_result((client, tools))
                await closing.wait()
        except asyncio.CancelledError:
            if not opened.done():
                opened.set_exception(ToolError(f"the MCP server {self.spec.name!r} was ended while it started"))
                opened.exception()
            raise
        except BaseException as error:  # task groups raise BaseExceptionGroup
            if not opened.done():
                opened.set_exception(self._unusable(error))
                opened.exception()  # marks it as seen, if nobody waits any more

    async def _transport(self, stack: AsyncExitStack) -> Any:
        spec = self.spec
        if spec.url is None:
            from mcp import StdioServerParameters, stdio_client

            parameters = StdioServerParameters(
                command=str(spec.command), args=list(spec.args), env=dict(spec.env), cwd=spec.cwd
            )
            return stdio_client(parameters, errlog=stack.enter_context(self._tail.open()))
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(spec.timeout)
        client = await stack.enter_async_context(httpx2.AsyncClient(headers=dict(spec.headers), timeout=timeout))
        return streamable_http_client(spec.url, http_client=client)

    def _unusable(self, error: BaseException) -> ToolError:
        spec = self.spec
        if isinstance(error, FileNotFoundError):
            return ToolError(
                f"the MCP server {spec.name!r} cannot be started: there is no program {spec.command!r}"
                + ("" if spec.cwd is None else f", or no folder {spec.cwd!r}")
            )
        if isinstance(error, ImportError):
            return ToolError(
                f"the MCP server {spec.name!r} cannot be used: the package mcp has another version than Woolly needs"
                f" ({_sentence(error)}): {install_command('mcp')}"
            )
        what = f"at {spec.url} cannot be used" if spec.url else "cannot be used"
        return ToolError(f"the MCP server {spec.name!r} {what}: {_sentence(error)}{self._tail.last()}")

    def _slow(self, name: str) -> ToolError:
        return ToolError(
            f"the MCP server {self.spec.name!r} did not finish {name} within {self.spec.timeout:g} s;"
            " timeout_ms in its entry gives it more time"
        )


async def _list_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) >= _MAX_TOOLS:
            break
    return tools[:_MAX_TOOLS]


def _sentence(error: BaseException) -> str:
    """Returns the first line of an error's text; of a group's, that of its first member."""
    while (members := getattr(error, "exceptions", None)) is not None:
        error = members[0]
    text = str(getattr(error, "message", "") or error).strip()
    return sanitize_text(text.splitlines()[0] if text else type(error).__name__, 300)


class _Tail:
    """The last lines that a server writes to standard error; they say why it ended, and no terminal shows them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=20)
        self._thread: threading.Thread | None = None

    def open(self) -> TextIO:
        """Returns the file that the server writes to."""
        self._lines.clear()
        reading, writing = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(reading,), name="woolly-mcp-stderr", daemon=True)
        self._thread.start()
        return os.fdopen(writing, "w")

    def last(self) -> str:
        """Returns the last line in brackets, or nothing."""
        if self._thread is not None:
            self._thread.join(0.2)  # its end is still on the way
        lines = [line.strip() for line in list(self._lines) if line.strip()]
        return f" ({sanitize_text(lines[-1], 300)})" if lines else ""

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(4096):
                self._lines.append(line)
