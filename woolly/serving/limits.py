"""Limits: how often a client may ask, how much it may send, and what JSON it may send."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import anyio

from woolly.serving.errors import ApiError
from woolly.serving.holding import run_held

__all__ = ["BodyBudget", "RateLimiter", "check_json", "read_body"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_MAX_CLIENTS = 10_000  # remembered at once; the one that was quiet for longest is forgotten first
MAX_DEPTH = 64
MAX_VALUES = 200_000  # of a body in all; a prompt of as many token ids fits no model
MAX_KEYS = 10_000  # of one object
_RETRY = 1.0  # seconds after which bodies may be done with
_LARGE = 1 << 16  # bytes of JSON that are looked at on another thread


class RateLimiter:
    """A bucket per client that fills evenly and holds a minute's worth. Belongs to the event loop's thread."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """0 limits nothing."""
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client -> (requests left, when)

    def count(self, client: str) -> None:
        """ApiError 429 with the time to wait where a client has asked too often."""
        if not self._per_minute:
            return
        now = self._clock()
        left, when = self._buckets.pop(client, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - when) * self._per_minute / 60)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ApiError(
                429,
                "rate_limit_exceeded",
                f"a client may ask {self._per_minute} times a minute here; try again later",
                retry_after=(1 - left) * 60 / self._per_minute,
            )


class BodyBudget:
    """Bytes that the bodies of all requests hold together. Belongs to the event loop's thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.n_held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """What the block takes by calls of the given function is given back at its end.

        Only what has arrived counts: a client that announces much and sends nothing holds nothing. ApiError 503 where
        all is taken.
        """
        n_taken = 0

        def take(n: int) -> None:
            nonlocal n_taken
            if self.n_held + n > self._most:
                raise ApiError(
                    503,
                    "too_many_bytes",
                    f"the requests under way hold {self.n_held} bytes, and this server holds at most {self._most};"
                    " try again",
                    retry_after=_RETRY,
                )
            self.n_held += n
            n_taken += n

        try:
            yield take
        finally:
            self.n_held -= n_taken


async def read_body(
    receive: Receive, declared: int | None, most: int, seconds: float, take: Callable[[int], None] = lambda _: None
) -> bytes | None:
    """The whole body; None where the client went away. ApiError 413 or 408 where it is too large or too slow.

    `take` is told of the bytes as they arrive, and may refuse them.
    """
    if declared is not None and declared > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    # asyncio's wait_for would make a task for each part, most of which are there already.
    with anyio.move_on_after(seconds):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            take(len(parts[-1]))
            if not message.get("more_body", False):
                return b"".join(parts)
    raise ApiError(408, "request_too_slow", f"the request did not arrive within {seconds:g} seconds; send it faster")


async def check_json(body: bytes) -> None:
    """ApiError 400 for what JSON does not know, 413 for more than an honest request holds."""
    if len(body) > _LARGE:
        await run_held(_check_json, body)
    else:
        _check_json(body)


def _check_json(body: bytes) -> None:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_json", f"the body is not UTF-8 (byte {error.start}); send UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_parse_int, parse_float=_parse_float)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, "invalid_json", f"the body is no JSON: {error.msg} at {where}") from None
    # Looking at every value is needed only where it could find something.
    n_opened = body.count(b"{") + body.count(b"[")
    if n_opened + body.count(b",") >= MAX_VALUES or body.count(b":") > MAX_KEYS:
        _check_size(value)
    if n_opened > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in body:
        _check_text(value)


def _check_size(value: Any) -> None:
    """Each value costs an object and a check, and each that is wrong an error, many times its byte or two."""
    n_values = 1
    stack = [value]
    while stack:
        item = stack.pop()
        if not isinstance(item, (dict, list)):
            continue
        n_values += len(item)
        if n_values > MAX_VALUES:
            raise ApiError(413, "body_too_large", f"the body holds more than {MAX_VALUES} values; send fewer")
        if isinstance(item, dict) and len(item) > MAX_KEYS:
            raise ApiError(413, "body_too_large", f"an object of the body has more than {MAX_KEYS} keys; send fewer")
        stack += item.values() if isinstance(item, dict) else item


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
    if level:
        raise _too_deep()


def _check_text(value: Any) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack += item.keys()
            stack += item.values()
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode()
            except UnicodeEncodeError:
                raise ApiError(
                    400, "invalid_json", "a text holds half of a surrogate pair; escape whole characters"
                ) from None


def _refuse_constant(name: str) -> float:
    raise ApiError(400, "invalid_json", f"{name} is no number of JSON; send a finite number")


def _parse_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ApiError(400, "invalid_json", f"{text[:40]} is beyond what a number can hold; send a smaller one")
    return value


def _parse_int(text: str) -> int:
    if len(text) > 40:
        raise ApiError(400, "invalid_json", f"{text[:40]}... has {len(text)} digits; send a smaller number")
    return int(text)


def _too_large(most: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is larger than {most} bytes, which this server takes at most")


def _too_deep() -> ApiError:
    return ApiError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels; flatten it")
