"""Tool results, placed directly after their calls, as chat templates expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.chat.message import Message

if TYPE_CHECKING:
    from woolly.chat.tools.tool import ToolCall

_NOTHING = "no result"


def place_results(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the results of each turn directly after its calls, in the order of the calls.

    A turn ends with the next assistant message. A result without a call becomes a user message. A call without a result
    gets "no result" if other messages follow the call; results of the last calls may still arrive. Later messages never
    change a turn, so the prefix of a growing conversation is stable.
    """
    placed: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.role != "assistant":
            placed.append(_said(message) if message.role == "tool" else message)
            continue
        placed.append(message)
        end = next((i for i in range(at, len(messages)) if messages[i].role == "assistant"), len(messages))
        turn = messages[at:end]
        if message.calls:
            placed += _fit(message.calls, turn, is_last=end == len(messages))
            at = end
        elif message.more.get("tool_calls"):  # in a format that only the template may know
            placed += turn
            at = end
    return placed


def _fit(calls: Sequence[ToolCall], turn: Sequence[Message], *, is_last: bool) -> list[Message]:
    """Return the messages after calls: first the results, then the others."""
    left = list(turn)
    results: list[Message | None] = [_take(left, call, by_id=True) for call in calls]
    results = [result or _take(left, call, by_id=False) for result, call in zip(results, calls, strict=True)]
    if is_last and not left:
        return [result for result in results if result is not None]
    known = [
        result or Message("tool", _NOTHING, name=call.name, call_id=call.id)
        for result, call in zip(results, calls, strict=True)
    ]
    return [*known, *(_said(message) if message.role == "tool" else message for message in left)]


def _take(left: list[Message], call: ToolCall, *, by_id: bool) -> Message | None:
    """Remove and return the result of a call. Results without ids, as sent by Ollama's clients, are matched by name."""
    for i, message in enumerate(left):
        if message.role != "tool":
            continue
        if message.call_id == call.id if by_id else not message.call_id and message.name in (None, call.name):
            return left.pop(i)
    return None


def _said(result: Message) -> Message:
    return replace(result, role="user", name=None, call_id=None, more={})
