"""Interface of an API dialect, and the registry that finds the dialect of a path."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from starlette.datastructures import State
from starlette.requests import HTTPConnection

from woolly.chat import ChatFormat
from woolly.llm import ChatChunk
from woolly.serving.errors import ApiError
from woolly.serving.generation.running_request import RunningRequest
from woolly.serving.router import APIRouter
from woolly.serving.sse import sse_event

HealthReport = Literal["health", "status", "ready", "live"]  # the function in observability/health.py


class Dialect(Protocol):
    """Routes and formats of one API. Implementations override these defaults."""

    name: str
    prefix: str  # path prefix of the dialect
    aliases: tuple[str, ...] = ()  # additional prefixes
    pattern: re.Pattern[str] | None = None  # additional paths below the prefix of another dialect
    router: APIRouter
    health: Mapping[str, HealthReport] = {}  # health routes and their reports; served without a key
    metrics: tuple[str, ...] = ()  # paths of metrics
    polled: tuple[str, ...] = ()  # polled paths
    tokens: tuple[str, ...] = ()  # paths that take a key or token in the body
    media_type: str = "text/event-stream"  # media type of a stream
    query_key: str | None = None  # query parameter for a key; None: headers only
    takes_any_type: bool = False  # accept JSON with any Content-Type, as `curl -d` sends it

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return the JSON body of an error."""
        ...

    def more_metrics(self, state: State) -> str:
        """Return metrics with the names of this API, in Prometheus' text format."""
        return ""

    def error_frame(self, error: ApiError) -> bytes:
        """Return the last frame of a failed stream."""
        return sse_event(self.error(error))


@dataclass(frozen=True)
class ReplyContext:
    """Data of a reply in addition to its chunks."""

    running: RunningRequest  # the request with its model, token counts and times
    layout: ChatFormat
    form: Any = None  # body of the request; its type depends on the dialect
    load_seconds: float = 0.0  # seconds that the request waited for its model

    def count_thoughts(self, thoughts: str) -> int:
        """Return the number of reasoning tokens, without markers."""
        return len(self.running.tokenizer.encode(thoughts, add_special=False)) if thoughts else 0


class ChatDialect(Dialect, Protocol):
    """Dialect that supports chats. `reply.py` creates the replies."""

    fields: Mapping[str, str]  # the body's names for fields of ChatRequest or SamplingParams, where they differ

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield the frames of a stream: server-sent events, JSON lines or WebSocket messages."""
        ...

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return the JSON of a complete reply."""
        ...


def dialect_of(connection: HTTPConnection) -> ChatDialect:
    """Return the dialect of a connection, which must support chats."""
    return cast(ChatDialect, connection.app.state.dialects.of(connection.url.path))


class Dialects(Sequence[Dialect]):
    """Registry of the app's dialects."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        """Paths that match no prefix belong to the dialect with an empty prefix, or else to the last dialect."""
        self._dialects = tuple(sorted(dialects, key=lambda dialect: -len(dialect.prefix)))
        prefixes = {prefix: one for one in self._dialects for prefix in (one.prefix, *one.aliases)}
        self._patterned = [one for one in self._dialects if one.pattern is not None]
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))

    def of(self, path: str) -> Dialect:
        """Return the dialect of a path, by pattern or by longest matching prefix."""
        for one in self._patterned:
            if one.pattern is not None and one.pattern.fullmatch(path):
                return one
        matching = (one for prefix, one in self._prefixes if path == prefix or path.startswith(f"{prefix}/"))
        return next(matching, self._dialects[-1])

    def __getitem__(self, index: Any) -> Any:
        return self._dialects[index]

    def __len__(self) -> int:
        return len(self._dialects)
