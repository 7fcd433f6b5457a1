"""Answers to a conversation: a Completion, Chunks and a Stream that keep reasoning and calls apart from text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from woolly.chat import CallStart, ChatFormat, Event, Finished, Reasoning, Text, ToolCall, Usage, gather
from woolly.engine import Chunk, Completion, EngineDriver, Request, Stream
from woolly.errors import RequestError


@dataclass(frozen=True)
class ChatCompletion(Completion):
    """A Completion whose `text` is without reasoning and calls. `str(completion)` is its text."""

    reasoning: str = ""  # reasoning before the answer
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class ChatChunk(Chunk):
    """A Chunk whose `text` is without reasoning and calls. `str(chunk)` is its text."""

    raw: str = ""  # the text as the model wrote it
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()  # calls whose last character came with this chunk
    events: tuple[Event, ...] = ()  # text, reasoning and calls in order; the last event is Finished


class ChatReader:
    """Reads the chunks of the answers to one conversation, as they arrive."""

    def __init__(self, layout: ChatFormat, requests: Sequence[Request]) -> None:
        self._layout = layout
        self._requests = tuple(requests)
        self._parsers = [layout.parser() for _ in self._requests]
        self._events: list[list[Event]] = [[] for _ in self._requests]
        self._n_calls = [0] * len(self._requests)  # calls that a chunk has carried completely

    def read(self, chunk: Chunk) -> ChatChunk:
        """Return the chunk with its reasoning and calls apart from its text."""
        index, parser = chunk.index, self._parsers[chunk.index]
        events = parser.push(chunk.text)
        if chunk.finish_reason is not None:
            events += parser.finish(chunk.finish_reason, _usage(self._requests[index]), chunk.stop_reason)
        self._events[index] += events
        return ChatChunk(
            **_fields(chunk),
            raw=chunk.text,
            text="".join(event.text for event in events if isinstance(event, Text)),
            reasoning="".join(event.text for event in events if isinstance(event, Reasoning)),
            tool_calls=self._ended_calls(index, events),
            events=tuple(events),
        )

    def complete(self, completion: Completion) -> ChatCompletion:
        """Return the complete answers with reasoning and calls apart from their text."""
        first, *others = (self._complete_one(index, one) for index, one in enumerate(completion.choices))
        return ChatCompletion(**{**vars(first), "others": tuple(others)})

    def _complete_one(self, index: int, one: Completion) -> ChatCompletion:
        events = self._events[index]
        if not events or not isinstance(events[-1], Finished):  # not read to its end, or not at all
            parser = self._layout.parser()
            events = parser.push(one.text) + parser.finish(one.finish_reason, _usage(self._requests[index]))
        return ChatCompletion(**_fields(one), **vars(gather(events)))

    def _ended_calls(self, index: int, events: Sequence[Event]) -> tuple[ToolCall, ...]:
        """Return the calls that another call or the end of the answer follows, if no chunk has carried them."""
        if not any(isinstance(event, (CallStart, Finished)) for event in events):
            return ()  # no call can have ended; gathering for each piece of a long call would take quadratic time
        calls = gather(self._events[index]).tool_calls
        n_ended = len(calls) if isinstance(events[-1], Finished) else max(0, len(calls) - 1)
        ended = calls[self._n_calls[index] : n_ended]
        self._n_calls[index] = max(n_ended, self._n_calls[index])
        return ended


class ChatStream(Stream):
    """A Stream of ChatChunks."""

    def __init__(self, driver: EngineDriver, layout: ChatFormat, requests: Sequence[Request]) -> None:
        super().__init__(driver, requests)
        self._reader = ChatReader(layout, requests)

    @property
    def completion(self) -> ChatCompletion:
        """Complete answer; RequestError before it has ended."""
        return self._reader.complete(super().completion)

    def __next__(self) -> ChatChunk:
        return self._reader.read(super().__next__())


def _fields(given: Chunk | Completion) -> dict[str, Any]:
    """Return all fields but the text."""
    return {field.name: getattr(given, field.name) for field in fields(given) if field.name != "text"}


def written_note(driver: EngineDriver, layout: ChatFormat, requests: Sequence[Request]) -> str:
    """Return the note of a conversation, written by the model. RequestError if the model writes no note."""
    return read_note(layout, requests, *driver.complete([requests]))


def read_note(layout: ChatFormat, requests: Sequence[Request], completion: Completion) -> str:
    """Return an answer's text as the note. RequestError if it is not a note."""
    note = ChatReader(layout, requests).complete(completion.checked()).text.strip()
    if not note:
        raise RequestError("the model wrote no note of the conversation", code="compaction_failed")
    return note


def _usage(request: Request) -> Usage:
    n_cached = 0 if request.prefix is None else request.prefix.hit_tokens
    return Usage(len(request.prompt), n_cached, len(request.output))
