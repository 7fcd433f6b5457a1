"""Tools of --mcp for the page, which shows each call and asks the user: /mcp/tools, /mcp/call, /mcp/start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from pydantic import BaseModel, Field

from woolly.chat import ToolCall
from woolly.errors import ToolError
from woolly.mcp import Toolbox, read_config
from woolly.serving.errors import ApiError
from woolly.serving.gate.authenticator import Authenticator
from woolly.serving.generation.thread_pool import start_task
from woolly.serving.observability.logs import log
from woolly.serving.router import APIRouter

router = APIRouter()


class CallBody(BaseModel):
    """Call approved by the user."""

    name: str
    arguments: str = Field(default="{}", description="JSON text, as the model wrote it.")


class StartBody(BaseModel):
    """A server that failed, to be started again."""

    server: str


class PageTools:
    """The servers of the file of --mcp, started with the app. None: there are no tools."""

    def __init__(self, file: Path | None) -> None:
        """RequestError if the file cannot be read or the package is missing."""
        config = None if file is None else read_config(file)
        self._box = None if config is None else Toolbox(config.servers)
        if config is not None and config.ignored:
            log.warning("mcp", extra={"file": str(file), "without_effect": ", ".join(config.ignored)})

    def open(self) -> None:
        """Start all servers without waiting for them."""
        if self._box is not None:
            for server in self._box.servers:
                start_task(self._start(self._box, server.name))

    def list(self) -> dict[str, Any]:
        """Return the state of each server, and the tools of running servers. Starts no server."""
        if self._box is None:
            return {"tools": [], "servers": []}
        servers = [vars(server) for server in self._box.servers]  # first: a running server has its tools listed
        listed = [
            {**tool.tool.to_json()["function"], "server": tool.server, "read_only": tool.is_read_only}
            for tool in self._box.tools
        ]
        return {"tools": listed, "servers": servers}

    async def start(self, name: str) -> None:
        """Restart a failed server, and wait for it."""
        known = {} if self._box is None else {server.name: server for server in self._box.servers}
        if self._box is None or name not in known:
            raise ApiError(
                404, "not_found", f"--mcp names no server {name[:80]!r}; it names: {', '.join(known) or 'none'}"
            )
        if known[name].state == "failed":
            await self._start(self._box, name)

    async def _start(self, box: Toolbox, name: str) -> None:
        error = await asyncio.wrap_future(box.start(name))
        if error is None:
            log.info("mcp", extra={"server": name, "tools": sum(tool.server == name for tool in box.tools)})
        else:
            log.warning("mcp", extra={"reason": str(error)})

    async def call(self, body: CallBody) -> dict[str, Any]:
        """Return the text of a result. A failed call has a text too, for the model."""
        if self._box is None:
            raise ApiError(404, "not_found", "this server has no tools; --mcp names a file of MCP servers")
        try:
            result = await asyncio.wrap_future(self._box.begin(ToolCall("", body.name, body.arguments)))
        except ToolError as error:
            return {"text": f"Error: {error}", "is_error": True}
        return {"text": f"Error: {result.text}" if result.is_error else result.text, "is_error": result.is_error}

    async def close(self) -> None:
        """Ends the servers."""
        if self._box is not None:
            await asyncio.to_thread(self._box.close)


@router.get("/mcp/tools", summary="List the tools of --mcp")
async def list_tools(request: Request) -> dict[str, Any]:
    """For the page: each server is starting, up or failed; tools as OpenAI describes functions. Empty without --mcp."""
    _check(request)
    return request.app.state.tools.list()  # type: ignore[no-any-return]


@router.post("/mcp/start", summary="Start a server of --mcp again")
async def start_server(body: StartBody, request: Request) -> dict[str, Any]:
    """For the page: starts a server that failed, waits for it, and lists all as /mcp/tools does."""
    _check(request)
    await request.app.state.tools.start(body.server)
    return request.app.state.tools.list()  # type: ignore[no-any-return]


@router.post("/mcp/call", summary="Call a tool of --mcp")
async def call_tool(body: CallBody, request: Request) -> dict[str, Any]:
    """For the page, after the user agreed. Pages of other origins are rejected even if they may chat."""
    _check(request)
    log.info("mcp call", extra={"tool": body.name[:100]})
    return await request.app.state.tools.call(body)  # type: ignore[no-any-return]


def is_off(authenticator: Authenticator) -> bool:
    """True if nobody may use tools: the server has keys, and none of them is an admin key."""
    return not authenticator.is_open and not authenticator.has_admins


def _check(request: Request) -> None:
    """ApiError 403 for a page of another origin, and, if the server has keys, for a key that is not an --admin-key."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(
            403, "access_denied", "tools are for this server's own page; pages of this origin may not use them"
        )
    authenticator: Authenticator = request.app.state.authenticator
    if is_off(authenticator):
        raise ApiError(
            403, "access_denied", "the tools of --mcp are off: they need a key of --admin-key, and there is none"
        )
    if not authenticator.is_open and not request.state.is_admin:
        raise ApiError(403, "access_denied", "this key may not use the tools of --mcp; a key of --admin-key may")
