"""WS /ws: chats over one connection, streamed token by token. Each chat can be cancelled.

    client                                          server
    {"type": "chat", "id": "1", "messages": [...]}  {"type": "start", "id": "1", "model": ..., "request_id": ...}
                                                    {"type": "token", "id": "1", "content": "..."}, ...
                                                    {"type": "done", "id": "1", "content", "finish_reason", ...}
    {"type": "cancel", "id": "1"}                   {"type": "cancelled", "id": "1", "content": "..."}
    {"type": "ping"}                                {"type": "pong"}
                                                    {"type": "error", "id": "1", "error": {"code", "message", ...}}

A chat takes the fields of POST /inference/chat. The id is chosen by the client, by default by the server. The
request_id is in the log. The `start` message has `ignored` if fields of the chat have no effect. A socket is closed if
it has no chat and no message for --socket-idle seconds, or if its key or token is no longer valid when a chat starts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError

from woolly.chat import Event, Finished
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.completions.chat import delta, figures, message_of
from woolly.serving.dialects.ole.bodies import InferenceBody, validated
from woolly.serving.dialects.ole.inference import open_reply
from woolly.serving.errors import ApiError, to_api_error
from woolly.serving.gate.access_control import revalidate
from woolly.serving.gate.json_parser import parse_json
from woolly.serving.observability.logs import ignored, log, request_id
from woolly.serving.router import APIRouter

router = APIRouter()

_MAX_CHATS = 16  # concurrent chats per connection
_POLICY = 1008  # RFC 6455: policy violation
_NO_KEY = "the key or token of this connection is no longer valid; connect again with a valid one"


@router.websocket("/ws")
async def talk(socket: WebSocket) -> None:
    """Serve a connection until it ends."""
    await socket.accept()
    connection = _Connection(socket)
    seconds = socket.app.state.settings.socket_idle
    receiving = asyncio.ensure_future(socket.receive())
    try:
        while True:
            done, _ = await asyncio.wait([receiving], timeout=seconds - connection.idle_seconds if seconds else None)
            if not done and connection.idle_seconds >= seconds:
                log.info("socket idle", extra={"seconds": seconds})
                await connection.end(f"no message within {seconds:g} seconds")
                return
            if done:
                message = receiving.result()
                if message["type"] == "websocket.disconnect":
                    return
                await connection.take(message.get("text") or "")  # binary messages are treated as empty
                if connection.is_ended:
                    return
                receiving = asyncio.ensure_future(socket.receive())
    finally:
        receiving.cancel()
        await connection.close()


class _Connection:
    """Chats of one connection. A lock serializes sent messages."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._chats: dict[str, asyncio.Task[None]] = {}
        self._ids = itertools.count(1)
        self._sending = asyncio.Lock()
        self._last_active = time.monotonic()
        self.is_ended = False  # True if the server has closed the socket

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last message or the end of the last chat; 0 while a chat runs."""
        return 0.0 if self._chats else time.monotonic() - self._last_active

    async def end(self, reason: str, code: int = 1001) -> None:
        """Close the socket from the server's side."""
        self.is_ended = True
        with suppress(WebSocketDisconnect, RuntimeError):
            async with self._sending:
                await self._socket.close(code, reason)

    async def take(self, text: str) -> None:
        """Handle a message. Errors are sent to the client, and the connection stays open."""
        self._last_active = time.monotonic()
        id: str | None = None
        try:
            message = await _parse(text)
            kind, id = message.pop("type", None), message.pop("id", None)
            if id is not None and (not isinstance(id, str) or len(id) > 128):
                id = None
                raise ApiError(400, "invalid_request", "id must be a string of at most 128 characters", param="id")
            if kind == "chat":
                # A key may be removed or a token may expire while the connection is open.
                if not revalidate(self._socket.app.state.authenticator, self._socket.scope["state"]):
                    log.info("socket without a valid key", extra={"client": self._socket.state.client})
                    await self.end(_NO_KEY, _POLICY)
                    return
                id = self._start(message, id, len(text.encode("utf-8", "surrogatepass")))
            elif kind == "cancel":
                self._cancel(id)
            elif kind == "ping":
                await self._send({"type": "pong"})
            else:
                raise ApiError(400, "invalid_request", f"type is {kind!r}; expected chat, cancel or ping", param="type")
        except Exception as error:
            await self._tell(id, _api_error_of(error))

    async def close(self) -> None:
        """Cancel all chats and wait until they end."""
        tasks = list(self._chats.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, message: dict[str, Any], id: str | None, size: int) -> str:
        ignored.set([])  # of this chat; its task inherits the list
        # Each chat counts as a request.
        self._socket.app.state.rates.count(self._socket.state.bucket)
        number = next(self._ids)
        id = id or f"chat-{number}"
        if id in self._chats:
            raise ApiError(409, "chat_exists", f"the chat {id!r} is still running", param="id")
        if len(self._chats) >= _MAX_CHATS:
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"the limit of {_MAX_CHATS} concurrent chats is reached; wait for one to end",
            )
        body = validated(InferenceBody, message)
        if body.stream is False:
            raise ApiError(400, "invalid_request", "a socket always streams; remove stream", param="stream")
        # Usage and timings are as in a stream.
        body = body.model_copy(update={"stream": True})
        task = asyncio.create_task(self._run(id, f"{self._socket.state.id}.{number}", body, size))
        self._chats[id] = task
        task.add_done_callback(lambda _: self._chats.pop(id, None))
        return id

    def _cancel(self, id: str | None) -> None:
        task = self._chats.get(id or "")
        if task is None:
            raise ApiError(404, "chat_not_found", "no chat with this id is running", param="id")
        task.cancel()

    async def _run(self, id: str, name: str, body: InferenceBody, size: int) -> None:
        """Run a chat like a request, with its own id, log line and memory limit."""
        request_id.set(name)
        state = self._socket.app.state
        started, status, reason = time.monotonic(), 499, None
        try:
            with state.bodies.share() as take:
                take(size)
                await self._answer(id, name, body)
            status = 200
        except Exception as error:
            told = _api_error_of(error)
            status, reason = told.status, told.reason
            state.stats.count_error(told.code)
            await self._tell(id, told)
        finally:
            self._last_active = time.monotonic()
            log.info(
                "request",
                extra={
                    "client": self._socket.state.client,
                    "method": "WS",
                    "path": self._socket.url.path,
                    "status": status,
                    "reason": reason,
                    "ignored": ", ".join(ignored.get() or ()) or None,
                    "ms": 1000 * (time.monotonic() - started),
                },
            )

    async def _answer(self, id: str, name: str, body: InferenceBody) -> None:
        text = ""
        try:
            async with open_reply(self._socket, body, body.sent(chat=True) or []) as (head, chunks):
                start = {"type": "start", "id": id, "model": head.running.model.name, "request_id": name}
                await self._send(start | ({"ignored": names} if (names := ignored.get()) else {}))
                async for message in _messages(chunks, head):
                    text += message.get("content") or "" if message["type"] == "token" else ""
                    await self._send({"id": id, **message})
        except asyncio.CancelledError:
            await self._send({"type": "cancelled", "id": id, "content": text})
            raise

    async def _tell(self, id: str | None, error: ApiError) -> None:
        body = dict(self._socket.app.state.dialects.of(self._socket.url.path).error(error))
        if error.retry_after is not None:
            body["retry_after"] = error.retry_after
        await self._send({"type": "error", "id": id, **body})

    async def _send(self, message: dict[str, Any]) -> None:
        with suppress(WebSocketDisconnect, RuntimeError):  # the client is gone; `talk` ends the connection
            async with self._sending:
                await self._socket.send_text(json.dumps(message, ensure_ascii=False))


async def _messages(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[dict[str, Any]]:
    """Yield a message for each event. The last message of an answer has the complete answer."""
    answers: list[list[Event]] = [[] for _ in head.running.requests]
    async for chunk in chunks:
        answers[chunk.index] += chunk.events
        for one in chunk.events:
            message: dict[str, Any] = {"type": "token", "index": chunk.index, **delta(one)}
            if isinstance(one, Finished):
                whole = message_of(answers[chunk.index])
                message |= {"type": "done", "finish_reason": one.reason, **whole, **figures(head)}
            elif head.form.has_timings:
                message["timings"] = head.running.timings()
            yield message


async def _parse(text: str) -> dict[str, Any]:
    message = await parse_json(text.encode("utf-8", "surrogatepass"))
    if not isinstance(message, dict):
        raise ApiError(400, "invalid_request", "the message must be a JSON object")
    return message


def _api_error_of(error: Exception) -> ApiError:
    """Return the ApiError for an exception, and log internal errors."""
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        return ApiError(400, "invalid_request", f"{where or 'the message'}: {first['msg']}", param=where or None)
    told = to_api_error(error)
    if told.status >= 500 and not isinstance(error, ApiError):
        log.error("websocket chat failed", exc_info=error)
    return told
