"""GET /mcp/tools and POST /mcp/call: the tools of --mcp for the page, which shows each call and asks the person."""

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
from woolly.serving.router import APIRouter
from woolly.serving.watch.logs import log

__all__ = ["CallBody", "PageTools", "call_tool", "list_tools", "router"]

router = APIRouter()


class CallBody(BaseModel):
    """A call that a person has approved."""

    name: str
    arguments: str = Field(default="{}", description="JSON text, as the model wrote it.")


class PageTools:
    """The servers of the file of --mcp, started when the page first asks. None: there are no tools."""

    def __init__(self, file: Path | None) -> None:
        """RequestError if the file cannot be read or the package is missing."""
        config = None if file is None else read_config(file)
        self._box = None if config is None else Toolbox(config.servers)
        if config is not None and config.ignored:
            log.warning("mcp", extra={"file": str(file), "without_effect": ", ".join(config.ignored)})

    async def list(self) -> dict[str, Any]:
        """Returns all tools, and one sentence for each server that cannot be used; it is tried again next time."""
        if self._box is None:
            return {"tools": [], "errors": []}
        errors = [str(error) for error in await asyncio.to_thread(self._box.open)]
        for error in errors:
            log.warning("mcp", extra={"reason": error})
        listed = [
            {**tool.tool.to_json()["function"], "server": tool.server, "read_only": tool.is_read_only}
            for tool in self._box.tools
        ]
        return {"tools": listed, "errors": errors}

    async def call(self, body: CallBody) -> dict[str, Any]:
        """Returns the text of a result. A call that fails has a text too, which the model reads."""
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
    """For the page: tools as OpenAI describes functions, with their server. Empty without --mcp."""
    _check(request)
    return await request.app.state.tools.list()  # type: ignore[no-any-return]


@router.post("/mcp/call", summary="Call a tool of --mcp")
async def call_tool(body: CallBody, request: Request) -> dict[str, Any]:
    """For the page, after the person agreed. Pages of other origins are refused even if they may chat."""
    _check(request)
    log.info("mcp call", extra={"tool": body.name[:100]})
    return await request.app.state.tools.call(body)  # type: ignore[no-any-return]


def _check(request: Request) -> None:
    """ApiError 403 for a page of another origin, and for a key that is not an --admin-key where there is one."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise ApiError(
            403, "access_denied", "tools are for this server's own page; pages of this origin may not use them"
        )
    if request.app.state.authority.has_admins and not request.state.is_admin:
        raise ApiError(403, "access_denied", "this key may not use the tools of --mcp; a key of --admin-key may")
