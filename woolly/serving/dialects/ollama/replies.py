"""Replies in Ollama's format: JSON lines, or a single object."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal

from woolly.chat import CallArguments, CallStart, Event, Finished, Reasoning, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.call_arguments import arguments_object
from woolly.serving.dialects.completions.logprobs import LogprobTrack, chat_logprobs
from woolly.serving.dialects.heartbeat import with_heartbeats

Data = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Fields that the reply copies from the request, and its format."""

    model: str  # name from the request
    kind: Literal["chat", "generate"]
    has_context: bool = False  # the last line includes the token ids of the chat


class Lines:
    """Converts events of an answer to lines. A tool call is sent when it is complete."""

    def __init__(self, head: ReplyContext) -> None:
        self._head = head
        self._form: Form = head.form
        self._tokenizer = head.running.tokenizer
        self._track = None
        if head.layout.params.logprobs is not None:
            self._track = LogprobTrack(self._tokenizer, shown=head.layout.shown)
        self._call: CallStart | None = None
        self._arguments: list[str] = []

    def read(self, chunk: ChatChunk) -> list[Data]:
        """Return the lines of a chunk; the first line has the log-probabilities."""
        lines = [data for event in chunk.events for data in self._push(event)]
        if self._track is not None and (placed := self._track.push(chunk.raw, chunk.logprobs)):
            if not lines:
                lines = [_line(self._form)]
            lines[0]["logprobs"] = chat_logprobs(self._tokenizer, placed)["content"]
        return lines

    def _push(self, event: Event) -> list[Data]:
        if isinstance(event, CallArguments):
            self._arguments.append(event.text)
            return []
        lines = self._take_call()
        if isinstance(event, CallStart):
            self._call = event
        elif isinstance(event, Text):
            lines.append(_line(self._form, event.text))
        elif isinstance(event, Reasoning):
            lines.append(_line(self._form, thinking=event.text))
        elif isinstance(event, Finished):
            lines.append(self._end(event))
        return lines

    def _take_call(self) -> list[Data]:
        call, self._call = self._call, None
        if call is None:
            return []
        function = {"index": call.index, "name": call.name, "arguments": arguments_object("".join(self._arguments))}
        self._arguments.clear()
        return [_line(self._form, calls=[{"id": call.id, "function": function}])]

    def _end(self, event: Finished) -> Data:
        timings = self._head.running.timings()
        waited, answer = (round(1e6 * timings[name]) for name in ("prompt_ms", "predicted_ms"))
        load = min(waited, round(1e9 * self._head.load_seconds))  # the prompt time includes loading
        first = self._head.running.requests[0]
        # Tokens of an image are placeholders, which later turns could not use.
        context = {"context": list(first.context)} if self._form.has_context and first.multimodal is None else {}
        return {
            **_line(self._form),
            "done": True,
            "done_reason": "length" if event.reason == "length" else "stop",
            **context,
            "total_duration": waited + answer,  # all durations are in nanoseconds
            "load_duration": load,
            "prompt_eval_count": event.usage.n_prompt,
            "prompt_eval_cached_count": event.usage.n_cached,
            "prompt_eval_duration": waited - load,
            "eval_count": event.usage.n_answer,
            "eval_duration": answer,
        }


def line(data: Data) -> bytes:
    """Serialize a JSON line."""
    return (json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", "replace")


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield the lines, and empty lines as heartbeats."""
    return with_heartbeats(_frames(chunks, head), lambda: line(_line(head.form)))


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    lines = Lines(head)
    async for chunk in chunks:
        for data in lines.read(chunk):
            yield line(data)


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Data:
    """Return the last line, merged with the content of all lines."""
    lines = Lines(head)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Data] = []
    logprobs: list[Data] = []
    last: Data = {}
    async for chunk in chunks:
        for last in lines.read(chunk):
            part = last.get("message", last)
            texts.append(part.get("content", part.get("response", "")))
            thoughts.append(part.get("thinking", ""))
            calls += part.get("tool_calls", ())
            logprobs += last.get("logprobs", ())
    said = _said(head.form, "".join(texts), "".join(thoughts), calls)
    return {**last, **said, **({"logprobs": logprobs} if logprobs else {})}


def load_reply(form: Form, reason: Literal["load", "unload"], seconds: float) -> Data:
    """Return the reply to a request that only loads or unloads the model."""
    return {**_line(form), "done": True, "done_reason": reason, "load_duration": round(1e9 * seconds)}


def moment(seconds: float | None = None) -> str:
    """Return a time in RFC 3339 format, by default the current time."""
    now = datetime.now(timezone.utc) if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
    return now.isoformat().replace("+00:00", "Z")


def _line(form: Form, text: str = "", thinking: str = "", calls: list[Data] | None = None) -> Data:
    return {"model": form.model, "created_at": moment(), **_said(form, text, thinking, calls), "done": False}


def _said(form: Form, text: str, thinking: str, calls: list[Data] | None) -> Data:
    more: Data = {"thinking": thinking} if thinking else {}
    if form.kind == "generate":
        return {"response": text, **more}
    if calls:
        more["tool_calls"] = calls
    return {"message": {"role": "assistant", "content": text, **more}}
