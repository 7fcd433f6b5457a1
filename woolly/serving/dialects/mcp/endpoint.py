"""The /mcp endpoint: streamable HTTP with the mcp package."""

from __future__ import annotations

import asyncio
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

from woolly import __version__
from woolly.errors import WoollyError
from woolly.machine.optional_packages import install_command, requirement
from woolly.serving.dialects.mcp.tools import TOOLS
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.observability.logs import log

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.types import CallToolResult, ListToolsResult

_ABOUT = "Language models on this machine, at no cost per token; use them for bulk work."


class McpRoute:
    """ASGI app of the route, because the mcp package handles the connection itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        manager = await scope["app"].state.mcp.manager()
        await manager.handle_request(scope, receive, send)


class Endpoint:
    """Owns the package's session manager, from the first request to the end of the app. Requests are stateless."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._opened: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def manager(self) -> StreamableHTTPSessionManager:
        """Return the manager. Raises ApiError 501 if the package is missing or not usable."""
        if self._opened is None:
            if find_spec("mcp") is None:
                raise ApiError(501, "not_supported", _error_result("/mcp needs a package on the server's machine"))
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._opened))
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Stop the manager and its open requests."""
        self._closing.set()
        if self._task is not None:
            await self._task

    async def _hold(self, opened: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = _make_manager(self._state.settings.max_body_bytes)
            async with manager.run():  # the package requires that one task opens and closes it
                opened.set_result(manager)
                await self._closing.wait()
        except Exception as error:
            if opened.done():
                raise
            log.error("mcp", exc_info=error)
            unusable = _error_result(
                "the server cannot use the package mcp; install it there: pip install 'woolly-llm[mcp]'"
            )
            opened.set_exception(ApiError(501, "not_supported", unusable))
            opened.exception()  # mark the exception as retrieved if nothing awaits it


def _error_result(what: str) -> str:
    """Log how to install the package, and return the error for clients without local paths."""
    log.warning(f"{what}: {install_command('mcp')}")
    return f"{what}: install {requirement('mcp')} on the server; see its log"


def _make_manager(max_body: int) -> StreamableHTTPSessionManager:
    # Imported on the first request, because it takes half a second.
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        return _listed()

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        return await _called(context.request, params.name, params.arguments or {})

    server: Server[Any] = Server(
        "woolly",
        version=__version__,
        instructions=_ABOUT,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: TOOLS[name].body.model_json_schema() if name in TOOLS else None,
    )
    return StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=max_body)


def _listed() -> ListToolsResult:
    from mcp.types import ListToolsResult, Tool, ToolAnnotations

    hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    tools = [
        Tool(name=name, description=tool.about, input_schema=tool.body.model_json_schema(), annotations=hints)
        for name, tool in TOOLS.items()
    ]
    return ListToolsResult(tools=tools)


async def _called(request: Request, name: str, arguments: dict[str, Any]) -> CallToolResult:
    """Return the result of a tool. Errors are results too, which the client's model reads."""
    try:
        if name not in TOOLS:
            raise ApiError(404, "not_found", f"unknown tool {name[:80]!r}; available: {', '.join(TOOLS)}")
        body = _read(TOOLS[name].body, arguments)
        return _result(await TOOLS[name].run(request, body))
    except WoollyError as error:
        api_error = to_api_error(error)
        request.app.state.stats.count_error(api_error.code)
        return _result(api_error.client_message, is_error=True)
    except Exception as error:
        log.error("tool failed", exc_info=error)
        return _result(to_api_error(error).client_message, is_error=True)


def _read(kind: type[BaseModel], arguments: dict[str, Any]) -> BaseModel:
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ApiError(400, "invalid_request", f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def _result(given: Any, *, is_error: bool = False) -> CallToolResult:
    from mcp.types import CallToolResult, TextContent

    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=None if isinstance(given, str) else dict(given),
        is_error=is_error,
    )
