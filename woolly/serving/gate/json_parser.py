"""JSON parser of bodies; rejects invalid JSON and excessive values."""

from __future__ import annotations

import json
from typing import Any

from woolly.serving.errors import ApiError
from woolly.serving.generation.thread_pool import run_in_thread

MAX_DEPTH = 64
MAX_VALUES = 200_000  # in the entire body; more than the token ids of any prompt
MAX_KEYS = 10_000  # per object
_LARGE = 1 << 16  # bytes from which parsing moves to a thread


async def parse_json(body: bytes) -> Any:
    """Parse a body. Raises ApiError 400 for invalid JSON, 413 for too many values."""
    return await run_in_thread(_parse, body) if len(body) > _LARGE else _parse(body)


def _parse(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, "invalid_json", f"the body is not UTF-8 (byte {error.start}); send UTF-8") from None
    # A dict drops repeated keys, so the keys are counted before the dict is created.
    has_many = body.count(b":") > MAX_KEYS
    hook = _object if has_many else None
    try:
        value = json.loads(
            text,
            object_pairs_hook=hook,
            parse_constant=_reject_constant,
            parse_int=_parse_int,
            parse_float=_parse_float,
        )
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error.msg} at {where}") from None
    # These counts are cheap upper bounds; the values are traversed only if a limit could be exceeded.
    n_opened = body.count(b"{") + body.count(b"[")
    if n_opened + body.count(b",") >= MAX_VALUES or has_many:
        _check_size(value)
    if n_opened > MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in body:
        _check_text(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise ApiError(413, "body_too_large", f"an object of the body has more than {MAX_KEYS} keys; send fewer")
    return dict(pairs)


def _check_size(value: Any) -> None:
    """Reject bodies with too many values, because each needs many times more memory than its JSON."""
    n_values = 1
    stack = [value]
    while stack:
        item = stack.pop()
        if not isinstance(item, (dict, list)):
            continue
        n_values += len(item)
        if n_values > MAX_VALUES:
            raise ApiError(413, "body_too_large", f"the body has more than {MAX_VALUES} values; send fewer")
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
                    400, "invalid_json", "a string has half of a surrogate pair; escape both halves"
                ) from None


def _reject_constant(name: str) -> float:
    raise ApiError(400, "invalid_json", f"{name} is not a JSON number; send a finite number")


def _parse_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ApiError(400, "invalid_json", f"{text[:40]} is too large for a float; send a smaller number")
    return value


def _parse_int(text: str) -> int:
    if len(text) > 40:
        raise ApiError(400, "invalid_json", f"{text[:40]}... has {len(text)} digits; send a smaller number")
    return int(text)


def _too_deep() -> ApiError:
    return ApiError(400, "invalid_json", f"the body is nested deeper than {MAX_DEPTH} levels; flatten it")
