"""The Model Context Protocol: models as tools for other programs at /mcp, and tools of MCP servers for the page."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.routing import Route

from woolly.llm import ChatChunk
from woolly.serving.dialect import ChatDialect, ReplyContext
from woolly.serving.dialects.mcp import page_tools
from woolly.serving.dialects.mcp.endpoint import Endpoint, McpRoute
from woolly.serving.errors import ApiError, error_body
from woolly.serving.observability.logs import log
from woolly.serving.router import APIRouter

__all__ = ["DIALECT", "Mcp"]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the servers of --mcp with the app; end them and the endpoint with it."""
    app.state.mcp = Endpoint(app.state)
    file = app.state.settings.mcp
    if file is not None and page_tools.is_off(app.state.authenticator):
        log.warning("--mcp has no effect: if there are keys, tools need a key of --admin-key or --admin-key-file")
        file = None
    app.state.tools = page_tools.PageTools(file)
    app.state.tools.open()
    try:
        yield
    finally:
        try:
            await app.state.mcp.close()
        finally:
            await app.state.tools.close()


class Mcp(ChatDialect):
    """MCP. Errors of middleware have OpenAI's format; errors of a tool are results, as in the protocol."""

    name = "mcp"
    prefix = "/mcp"
    fields: Mapping[str, str] = {"schema": "json_schema"}

    def __init__(self) -> None:
        self.router = APIRouter(tags=["mcp"], lifespan=_lifespan)
        self.router.add_route(Route("/mcp", McpRoute(), methods=["POST"], include_in_schema=False))
        self.router.include_router(page_tools.router)

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return OpenAI's error object, which the page reads."""
        return error_body(error)

    async def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield text pieces; the protocol itself answers a call with a complete text."""
        async for chunk in chunks:
            yield chunk.text.encode()

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return the text of an answer."""
        texts = [chunk.text async for chunk in chunks]
        return {"text": "".join(texts)}


DIALECT = Mcp()
