"""Replies in Anthropic's format: stream events, and the message built from them."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from woolly.chat import CallArguments, CallStart, Event, Finished, Reasoning, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.call_arguments import Arguments
from woolly.serving.dialects.encrypted_reasoning import encode_reasoning
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.sse import named_sse_event

Data = dict[str, Any]

# (field of the block, field of the delta) by delta type.
_PARTS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("input", "partial_json"),
}


@dataclass(frozen=True)
class Form:
    """Options of a body that affect its reply."""

    max_tokens: int
    stops: tuple[str, ...] = ()
    hides_thinking: bool = False  # send reasoning only in the signature
    edits: tuple[Data, ...] | None = None  # edits applied to the chat; None if the body requests none

    @property
    def facts(self) -> Data:
        """Return the reply's fields about the chat."""
        return {} if self.edits is None else {"context_management": {"applied_edits": list(self.edits)}}


class Blocks:
    """Converts events of an answer to stream events. Each block is closed before the next opens."""

    def __init__(self, head: ReplyContext) -> None:
        self._head = head
        self._form: Form = head.form
        self._index = -1
        self._kind: str | None = None  # type of the open block
        self._arguments = Arguments()
        self._thought: list[str] = []
        self._thoughts: list[str] = []  # reasoning of all blocks

    def push(self, event: Event) -> list[Data]:
        """Return the stream events for an event of the answer."""
        if isinstance(event, Text):
            begun = self._enter("text", {"type": "text", "text": ""})
            return [*begun, self._delta("text_delta", event.text)]
        if isinstance(event, Reasoning):
            begun = self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._thought.append(event.text)
            self._thoughts.append(event.text)
            return begun if self._form.hides_thinking else [*begun, self._delta("thinking_delta", event.text)]
        if isinstance(event, CallStart):
            # Use Anthropic's id prefix; ids only need to match within a chat.
            id = "toolu_" + event.id.removeprefix("call_")
            closed = self._close()
            self._arguments = Arguments()
            return [*closed, *self._enter("tool_use", {"type": "tool_use", "id": id, "name": event.name, "input": {}})]
        if isinstance(event, CallArguments):
            text = self._arguments.push(event.text)
            return [self._delta("input_json_delta", text)] if text else []
        return [*self._close(), self._end(event)]

    def _enter(self, kind: str, block: Data) -> list[Data]:
        if self._kind == kind:
            return []
        closed = self._close()
        self._kind = kind
        self._index += 1
        return [*closed, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _close(self) -> list[Data]:
        kind, self._kind = self._kind, None
        if kind is None:
            return []
        told: list[Data] = []
        if kind == "thinking":
            thought = "".join(self._thought) if self._form.hides_thinking else ""
            told.append(self._delta("signature_delta", encode_reasoning(thought)))
            self._thought.clear()
        elif kind == "tool_use" and (rest := self._arguments.finish()):
            told.append(self._delta("input_json_delta", rest))
        return [*told, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, kind: str, text: str) -> Data:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, _PARTS[kind][1]: text}}

    def _end(self, event: Finished) -> Data:
        n_thought = self._head.count_thoughts("".join(self._thoughts))
        usage = _usage(event.usage.n_prompt, event.usage.n_cached, event.usage.n_answer, n_thought)
        return {"type": "message_delta", "delta": self._reason(event), "usage": usage, **self._form.facts}

    def _reason(self, event: Finished) -> Data:
        if event.reason == "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if event.reason == "length":
            is_limit = event.usage.n_answer >= self._form.max_tokens
            return {
                "stop_reason": "max_tokens" if is_limit else "model_context_window_exceeded",
                "stop_sequence": None,
            }
        if event.stop in self._form.stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": event.stop}
        return {"stop_reason": "end_turn", "stop_sequence": None}


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield server-sent events, and pings during silence."""
    return with_heartbeats(_frames(chunks, head), lambda: named_sse_event({"type": "ping"}))


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    yield named_sse_event({"type": "message_start", "message": _message(head)})
    async for data in _stream(chunks, head):
        yield named_sse_event(data)
    yield named_sse_event({"type": "message_stop"})


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Data:
    """Return the message built from the stream events."""
    message = _message(head)
    pieces: list[tuple[Data, dict[str, list[str]]]] = []
    async for data in _stream(chunks, head):
        if data["type"] == "content_block_start":
            pieces.append((data["content_block"], {}))
        elif data["type"] == "content_block_delta":
            field, source = _PARTS[data["delta"]["type"]]
            pieces[-1][1].setdefault(field, []).append(data["delta"][source])
        elif data["type"] == "message_delta":
            message |= {**data["delta"], "usage": data["usage"], **head.form.facts}
    message["content"] = [_block(block, parts) for block, parts in pieces]
    return message


def _block(block: Data, parts: dict[str, list[str]]) -> Data:
    joined = {field: "".join(texts) for field, texts in parts.items()}
    if block["type"] == "tool_use":
        return {**block, "input": json.loads(joined["input"])}
    return {**block, **joined}


async def _stream(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[Data]:
    blocks = Blocks(head)
    async for chunk in chunks:
        for event in chunk.events:
            for data in blocks.push(event):
                yield data


def _message(head: ReplyContext) -> Data:
    """Return the initial message, without blocks. The cached token count is only known at the end."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": head.running.model.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(head.running.n_prompt, 0, 0),
    }


def _usage(n_prompt: int, n_cached: int, n_answer: int, n_thought: int = 0) -> Data:
    """Return the usage in Anthropic's format, whose three input counts add up to the prompt length."""
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_answer,
        "output_tokens_details": {"thinking_tokens": n_thought},
    }
