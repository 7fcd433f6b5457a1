"""Calls of custom tools in replies of chat completions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from woolly.chat import CallArguments, CallStart, Event
from woolly.serving.dialects.custom_tools import custom_input

Delta = dict[str, Any]


def custom_call(call: dict[str, Any], customs: Collection[str]) -> dict[str, Any]:
    """Return a call in the format of a custom tool if it calls one."""
    function = call["function"]
    if function["name"] not in customs:
        return call
    return {
        "id": call["id"],
        "type": "custom",
        "custom": {"name": function["name"], "input": custom_input(function["arguments"])},
    }


class CustomCallStream:
    """Turns events of calls into deltas of custom tools. The input follows when its JSON string is complete."""

    def __init__(self, customs: Collection[str]) -> None:
        self._customs = customs
        self._open: int | None = None  # index of the open call
        self._texts: list[str] = []

    def push(self, event: Event) -> Iterator[Delta | None]:
        """Yield the deltas of an event; None stands for the usual delta of the event."""
        if isinstance(event, CallArguments) and event.index == self._open:
            self._texts.append(event.text)
            return
        if self._open is not None:
            custom = {"input": custom_input("".join(self._texts))}
            yield {"tool_calls": [{"index": self._open, "custom": custom}]}
            self._open = None
        if isinstance(event, CallStart) and event.name in self._customs:
            self._open, self._texts = event.index, []
            custom = {"name": event.name, "input": ""}
            yield {"tool_calls": [{"index": event.index, "id": event.id, "type": "custom", "custom": custom}]}
            return
        yield None
