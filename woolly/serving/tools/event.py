"""What a parser makes of an answer, piece by piece: text, the start of a call, more of its arguments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Arguments", "CallStart", "Event", "Text", "ToolCall", "gather"]


@dataclass(frozen=True)
class Text:
    """Text that is no part of a call."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins: its name is known, its arguments follow."""

    index: int  # among the calls of one answer
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """More characters of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Text | CallStart | Arguments


@dataclass(frozen=True)
class ToolCall:
    """A whole call; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


def gather(events: Iterable[Event]) -> tuple[str, tuple[ToolCall, ...]]:
    """All text, and all calls, of an answer's events."""
    text: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        if isinstance(event, Text):
            text.append(event.text)
        elif isinstance(event, CallStart):
            starts.append(event)
            arguments.append([])
        else:
            arguments[event.index].append(event.text)
    calls = (ToolCall(s.id, s.name, "".join(a)) for s, a in zip(starts, arguments, strict=True))
    return "".join(text), tuple(calls)
