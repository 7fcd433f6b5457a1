"""Model Context Protocol: models as tools at /mcp, and tools of MCP servers for the web page."""

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
    """Start the servers of --mcp with the app, and stop them and the endpoint at the end."""
    app.state.mcp = Endpoint(app.state)
    file = app.state.settings.mcp
    if file is not None and page_tools.is_off(app.state.authenticator):
        log.warning(
            "--mcp has no effect: on a server with keys, tools need an admin key; set --admin-key or --admin-key-file"
        )
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
    """Dialect of MCP. Middleware errors have OpenAI's format; tool errors are results, as in the protocol."""

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
        """Yield the text of the chunks."""
        async for chunk in chunks:
            yield chunk.text.encode()

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return the text of the answer."""
        texts = [chunk.text async for chunk in chunks]
        return {"text": "".join(texts)}


DIALECT = Mcp()
