"""The Answer: one of the n answers of a chat, from chunks of text to what the client reads."""

from __future__ import annotations

from typing import Any

from woolly.engine import Chunk
from woolly.serving.openai.logprobs import LogprobTrack, PlacedLogprob, chat_logprobs
from woolly.serving.reasoning import ReasoningSplitter, Split
from woolly.serving.tools import Arguments, CallStart, Event, Text, ToolCall, ToolParser, gather
from woolly.text import Tokenizer

__all__ = ["Answer"]

Delta = dict[str, Any]


class Answer:
    """Splits reasoning and calls from the text as it comes, and keeps all of it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        splitter: ReasoningSplitter,
        parser: ToolParser | None,
        *,
        logprobs: bool,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """`shown` are the control tokens that are part of the text."""
        self._tokenizer = tokenizer
        self._splitter = splitter
        self._parser = parser
        self._track = LogprobTrack(tokenizer, shown=shown) if logprobs else None
        self._reasoning: list[str] = []
        self._events: list[Event] = []
        self._placed: list[PlacedLogprob] = []
        self._n_told = 0  # log-probabilities that a stream has carried
        self._reason: str | None = None

    def push(self, chunk: Chunk) -> list[Delta]:
        """What a chunk adds, as the deltas of a stream."""
        if self._track is not None:
            self._placed += self._track.push(chunk.text, chunk.logprobs)
        deltas = self._read(self._splitter.push(chunk.text))
        if chunk.finish_reason is not None:
            deltas += self._read(self._splitter.finish())
            if self._parser is not None:
                deltas += self._tell(self._parser.finish())
            self._reason = chunk.finish_reason
        return deltas

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, in OpenAI's words."""
        called = self._parser is not None and self._parser.n_calls > 0
        return "tool_calls" if called and self._reason == "stop" else self._reason

    def take_logprobs(self) -> dict[str, Any] | None:
        """Log-probabilities since the last call, where they were asked for."""
        if self._track is None:
            return None
        placed = self._placed[self._n_told :]
        self._n_told = len(self._placed)
        return chat_logprobs(self._tokenizer, placed)

    def message(self) -> dict[str, Any]:
        """All of it."""
        text, calls = gather(self._events)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return message

    def choice(self, index: int) -> dict[str, Any]:
        """As a reply carries it."""
        return {
            "index": index,
            "message": self.message(),
            "logprobs": self.take_logprobs(),
            "finish_reason": self.finish_reason,
        }

    def _read(self, split: Split) -> list[Delta]:
        deltas: list[Delta] = []
        if split.reasoning:
            self._reasoning.append(split.reasoning)
            deltas.append({"reasoning_content": split.reasoning})
        if split.text:
            deltas += self._tell([Text(split.text)] if self._parser is None else self._parser.push(split.text))
        return deltas

    def _tell(self, events: list[Event]) -> list[Delta]:
        self._events += events
        return [_delta(event) for event in events]


def _delta(event: Event) -> Delta:
    if isinstance(event, Text):
        return {"content": event.text}
    call: dict[str, Any] = {"index": event.index}
    if isinstance(event, CallStart):
        call |= {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": ""}}
    elif isinstance(event, Arguments):
        call["function"] = {"arguments": event.text}
    return {"tool_calls": [call]}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
