"""Dialect: API-specific behavior of a group of routes, and the registry that finds it by a request's path."""

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
from woolly.serving.generation.sse import sse_event
from woolly.serving.router import APIRouter

HealthReport = Literal[
    "health", "status", "ready", "live"
]  # the function of serving/observability/health.py that answers


class Dialect(Protocol):
    """One API: its routes and its formats. Subclasses override these defaults."""

    name: str
    prefix: str  # of the paths whose errors have this dialect's shape
    aliases: tuple[str, ...] = ()  # additional prefixes
    pattern: re.Pattern[str] | None = None  # additional paths, below the prefix of another dialect
    router: APIRouter
    health: Mapping[str, HealthReport] = {}  # by path; answered without a key
    metrics: tuple[str, ...] = ()  # paths
    polled: tuple[str, ...] = ()  # polled paths
    tokens: tuple[str, ...] = ()  # paths that take a key or a token in the body
    media_type: str = "text/event-stream"  # of a stream
    query_key: str | None = None  # query parameter for a key; None: headers only
    takes_any_type: bool = False  # JSON with any Content-Type, as sent by the documented `curl -d` of some APIs

    def error(self, error: ApiError) -> Mapping[str, Any]:
        """Return the JSON of an error; status and headers come from the error."""
        ...

    def more_metrics(self, state: State) -> str:
        """Return metrics under the names of this API, in Prometheus' text format."""
        return ""

    def error_frame(self, error: ApiError) -> bytes:
        """Return the last frame of a stream that fails."""
        return sse_event(self.error(error))


@dataclass(frozen=True)
class ReplyContext:
    """Facts of a reply besides its chunks: model, tokens, times, and the options of the body."""

    running: RunningRequest  # model, and tokens and times so far
    layout: ChatFormat
    form: Any = None  # specific to the dialect
    load_seconds: float = 0.0  # seconds that the request waited for its model

    def count_thoughts(self, thoughts: str) -> int:
        """Return the number of reasoning tokens, without the markers."""
        return len(self.running.tokenizer.encode(thoughts, add_special=False)) if thoughts else 0


class ChatDialect(Dialect, Protocol):
    """Dialect with conversations. `reply.py` opens them and replies."""

    fields: Mapping[str, str]  # the body's name for a field of ChatRequest or SamplingParams, if it differs

    def frames(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
        """Yield the frames of a stream: server-sent events, lines of JSON, or messages of a WebSocket."""
        ...

    async def full_reply(self, chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Mapping[str, Any]:
        """Return the JSON of a complete reply."""
        ...


def dialect_of(connection: HTTPConnection) -> ChatDialect:
    """Return the dialect of a connection's path, which must be a ChatDialect."""
    return cast(ChatDialect, connection.app.state.dialects.of(connection.url.path))


class Dialects(Sequence[Dialect]):
    """The dialects of one app."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        """Paths without a matching prefix use the dialect with an empty prefix, or else the last one."""
        self._dialects = tuple(sorted(dialects, key=lambda dialect: -len(dialect.prefix)))
        prefixes = {prefix: one for one in self._dialects for prefix in (one.prefix, *one.aliases)}
        self._patterned = [one for one in self._dialects if one.pattern is not None]
        self._prefixes = sorted(prefixes.items(), key=lambda item: -len(item[0]))

    def of(self, path: str) -> Dialect:
        """Return the dialect of a path: by matching pattern, or by longest prefix."""
        for one in self._patterned:
            if one.pattern is not None and one.pattern.fullmatch(path):
                return one
        matching = (one for prefix, one in self._prefixes if path == prefix or path.startswith(f"{prefix}/"))
        return next(matching, self._dialects[-1])

    def __getitem__(self, index: Any) -> Any:
        return self._dialects[index]

    def __len__(self) -> int:
        return len(self._dialects)
