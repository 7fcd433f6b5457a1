"""Ole's routes and those of the original Woolly, below /api/v1."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import APIRouter, FastAPI

from woolly.serving.holding import Shared
from woolly.serving.ole import auth, inference, models, performance, sessions, websocket
from woolly.serving.ole.figures import Bandwidth
from woolly.serving.sessions import SessionStore

__all__ = ["router"]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The sessions are open for as long as the app runs."""
    settings = app.state.settings
    app.state.sessions = SessionStore(
        settings.sessions_path, most_sessions=settings.max_sessions, most_bytes=settings.max_session_bytes
    )
    app.state.busy_sessions = set()
    app.state.bandwidth = Bandwidth()
    app.state.look = Shared(partial(performance.look_at, app.state))
    app.state.benchmarking = asyncio.Lock()
    try:
        yield
    finally:
        app.state.sessions.close()


router = APIRouter(prefix="/api/v1", tags=["ole"], lifespan=_lifespan)
for part in (auth, models, inference, performance, sessions, websocket):
    router.include_router(part.router)
