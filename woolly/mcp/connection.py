"""Connection to an MCP server. Only the event loop of the Toolbox may use a connection."""

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

_MAX_PAGES = 50  # maximum number of pages in a server's list of tools
_MAX_TOOLS = 500
# The mcp package logs invalid lines with a traceback, which Python would print without a handler.
logging.getLogger("mcp").addHandler(logging.NullHandler())
_CLOSING = 10.0  # seconds; the mcp package kills a hanging process after about 4


class ServerConnection:
    """Starts the server on first use, and again after it has ended."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._task: asyncio.Task[None] | None = None
        self._client: asyncio.Future[tuple[Client, list[Tool]]] | None = None
        self._closing = asyncio.Event()
        self._tail = _Tail()

    async def tools(self) -> list[Tool]:
        """Return the server's tools. Raise ToolError if the server cannot be started."""
        return (await self._open())[1]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a tool call. Raise ToolError if the server rejects the call, times out or ends."""
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
                    f"MCP server {self.spec.name!r} ended during the call of {name}{self._tail.last()};"
                    " the next call restarts it"
                ) from None
            raise ToolError(f"MCP server {self.spec.name!r} rejected the call of {name}: {_sentence(error)}") from None
        except Exception as error:  # the mcp package does not catch errors of HTTP, JSON and validation
            await self.close()
            raise ToolError(
                f"MCP server {self.spec.name!r} failed during the call of {name}: {_sentence(error)}"
            ) from None
        return ToolResult.of(given)

    async def close(self) -> None:
        """Stop the server."""
        if (task := self._task) is None:
            return
        self._closing.set()
        if self._client is not None and not self._client.done():
            task.cancel()  # it is still starting and does not check the event
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
                f"MCP server {self.spec.name!r} did not respond within {self.spec.timeout:g} s"
                f"{self._tail.last()}; increase timeout_ms in its entry"
            ) from None
        except ToolError:
            self._task = self._client = None
            raise

    async def _run(self, opened: asyncio.Future[tuple[Client, list[Tool]]], closing: asyncio.Event) -> None:
        """Run the connection. The mcp package requires that the same task opens and closes it."""
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
                opened.set_exception(ToolError(f"MCP server {self.spec.name!r} was stopped while it started"))
                opened.exception()
            raise
        except BaseException as error:  # task groups raise BaseExceptionGroup
            if not opened.done():
                opened.set_exception(self._unusable(error))
                opened.exception()  # mark the exception as retrieved

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
                f"cannot start MCP server {spec.name!r}: program {spec.command!r} not found"
                + ("" if spec.cwd is None else f", or no folder {spec.cwd!r}")
            )
        if isinstance(error, ImportError):
            return ToolError(
                f"cannot use MCP server {spec.name!r}: unsupported version of the package mcp"
                f" ({_sentence(error)}): {install_command('mcp')}"
            )
        what = f" at {spec.url}" if spec.url else ""
        return ToolError(f"cannot use MCP server {spec.name!r}{what}: {_sentence(error)}{self._tail.last()}")

    def _slow(self, name: str) -> ToolError:
        return ToolError(
            f"MCP server {self.spec.name!r} did not finish {name} within {self.spec.timeout:g} s;"
            " increase timeout_ms in its entry"
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
    """Return the first line of an error message, or of the first error of a group."""
    while (members := getattr(error, "exceptions", None)) is not None:
        error = members[0]
    text = str(getattr(error, "message", "") or error).strip()
    return sanitize_text(text.splitlines()[0] if text else type(error).__name__, 300)


class _Tail:
    """Last lines of a server's standard error, for error messages; they are not shown in the terminal."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=20)
        self._thread: threading.Thread | None = None

    def open(self) -> TextIO:
        """Return the file for the server's standard error."""
        self._lines.clear()
        reading, writing = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(reading,), name="woolly-mcp-stderr", daemon=True)
        self._thread.start()
        return os.fdopen(writing, "w")

    def last(self) -> str:
        """Return the last line in parentheses, or an empty string."""
        if self._thread is not None:
            self._thread.join(0.2)  # the last output may still arrive
        lines = [line.strip() for line in list(self._lines) if line.strip()]
        return f" ({sanitize_text(lines[-1], 300)})" if lines else ""

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(4096):
                self._lines.append(line)
