"""Converts an answer to response items and stream events."""

from __future__ import annotations

import secrets
from typing import Any

from woolly.chat import CallArguments, CallStart, Event, Finished, Reasoning, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.completions.logprobs import LogprobTrack, chat_logprobs
from woolly.serving.dialects.custom_tools import custom_input
from woolly.serving.dialects.encrypted_reasoning import encode_reasoning
from woolly.serving.dialects.responses.tools import split_name

Data = dict[str, Any]


class Output:
    """Converts events of an answer to items. Each item is complete before the next is added.

    A complete reply and a stream have the same items.
    """

    def __init__(self, head: ReplyContext) -> None:
        self._form = head.form
        self._tokenizer = head.running.tokenizer
        self._track: LogprobTrack | None = None
        if head.form.has_logprobs:
            self._track = LogprobTrack(self._tokenizer, shown=head.layout.shown)
        self.items: list[Data] = []
        self.end: Finished | None = None
        self.reasoning_text = ""  # text of all reasoning items
        self._open: Data | None = None  # last item, while it is incomplete
        self._texts: list[str] = []  # text pieces of the open item
        self._logprobs: list[Data] = []

    def push(self, chunk: ChatChunk) -> list[Data]:
        """Return the stream events of a chunk, without sequence numbers."""
        placed = [] if self._track is None else self._track.push(chunk.raw, chunk.logprobs)
        logprobs = chat_logprobs(self._tokenizer, placed)["content"]
        told: list[Data] = []
        for event in chunk.events:
            told += self._push(event, logprobs)
            if isinstance(event, Text):
                logprobs = []
        return told

    def close(self, status: str = "completed") -> list[Data]:
        """Return the events that complete the open item."""
        item, self._open = self._open, None
        if item is None:
            return []
        text, self._texts = "".join(self._texts), []
        told = {"message": self._end_message, "reasoning": self._end_reasoning}.get(item["type"], self._end_call)(
            item, text
        )
        if item["type"] != "custom_tool_call":
            item["status"] = status
        return [*told, self._event("response.output_item.done", item=dict(item))]

    def _push(self, event: Event, logprobs: list[Data]) -> list[Data]:
        if isinstance(event, Text):
            begun = self._enter("message", "msg", role="assistant", content=[])
            if begun:
                begun.append(self._part("response.content_part.added", _output_text("", [])))
            self._texts.append(event.text)
            self._logprobs += logprobs
            return [*begun, self._part("response.output_text.delta", delta=event.text, logprobs=logprobs)]
        if isinstance(event, Reasoning):
            return self._think(event.text)
        if isinstance(event, CallStart):
            return [*self.close(), *self._begin_call(event)]
        if isinstance(event, CallArguments):
            self._texts.append(event.text)
            if self._open is None or self._open["type"] != "function_call":
                return []  # the text of a custom tool is known only when its JSON string ends
            return [self._about("response.function_call_arguments.delta", delta=event.text)]
        self.end = event
        return self.close("incomplete" if event.reason == "length" else "completed")

    def _enter(self, kind: str, prefix: str, **fields: Any) -> list[Data]:
        """Return the events that open an item of a type, or nothing if it is already open."""
        if self._open is not None and self._open["type"] == kind:
            return []
        closed = self.close()
        self._open = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, **fields}
        if kind != "custom_tool_call":
            self._open["status"] = "in_progress"
        self.items.append(self._open)
        return [*closed, self._event("response.output_item.added", item=dict(self._open))]

    def _think(self, text: str) -> list[Data]:
        begun = self._enter("reasoning", "rs", summary=[])
        if begun and self._form.has_summary:
            begun.append(self._summary("response.reasoning_summary_part.added", part=_summary_text("")))
        elif begun:
            begun.append(self._part("response.content_part.added", _reasoning_text("")))
        self._texts.append(text)
        if self._form.has_summary:
            return [*begun, self._summary("response.reasoning_summary_text.delta", delta=text)]
        return [*begun, self._part("response.reasoning_text.delta", delta=text)]

    def _begin_call(self, event: CallStart) -> list[Data]:
        named = {"call_id": event.id, **split_name(self._form.toolbox, event.name)}
        if event.name in self._form.toolbox.customs:
            return self._enter("custom_tool_call", "ctc", **named, input="")
        return self._enter("function_call", "fc", **named, arguments="")

    def _end_message(self, item: Data, text: str) -> list[Data]:
        part = _output_text(text, self._logprobs)
        item["content"] = [part]
        logprobs, self._logprobs = self._logprobs, []
        return [
            self._part("response.output_text.done", item=item, text=text, logprobs=logprobs),
            self._part("response.content_part.done", part, item=item),
        ]

    def _end_reasoning(self, item: Data, text: str) -> list[Data]:
        self.reasoning_text += text
        if self._form.has_sealed:
            item["encrypted_content"] = encode_reasoning(text)
        if self._form.has_summary:
            item["summary"] = [_summary_text(text)]
            return [
                self._summary("response.reasoning_summary_text.done", item=item, text=text),
                self._summary("response.reasoning_summary_part.done", item=item, part=_summary_text(text)),
            ]
        item["content"] = [_reasoning_text(text)]
        return [
            self._part("response.reasoning_text.done", item=item, text=text),
            self._part("response.content_part.done", _reasoning_text(text), item=item),
        ]

    def _end_call(self, item: Data, text: str) -> list[Data]:
        if item["type"] == "function_call":
            item["arguments"] = text or "{}"
            rest = [] if text else [self._about("response.function_call_arguments.delta", item=item, delta="{}")]
            done = {"name": item["name"], "arguments": item["arguments"]}
            return [*rest, self._about("response.function_call_arguments.done", item=item, **done)]
        item["input"] = custom_input(text)
        return [
            self._about("response.custom_tool_call_input.delta", item=item, delta=item["input"]),
            self._about("response.custom_tool_call_input.done", item=item, input=item["input"]),
        ]

    def _event(self, kind: str, **fields: Any) -> Data:
        return {"type": kind, "output_index": len(self.items) - 1, **fields}

    def _about(self, kind: str, *, item: Data | None = None, **fields: Any) -> Data:
        """Return an event about an item, by default the open item."""
        about = self._open if item is None else item
        assert about is not None
        return self._event(kind, item_id=about["id"], **fields)

    def _part(self, kind: str, part: Data | None = None, *, item: Data | None = None, **fields: Any) -> Data:
        more = {} if part is None else {"part": part}
        return self._about(kind, item=item, content_index=0, **more, **fields)

    def _summary(self, kind: str, *, item: Data | None = None, **fields: Any) -> Data:
        return self._about(kind, item=item, summary_index=0, **fields)


def _output_text(text: str, logprobs: list[Data]) -> Data:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _summary_text(text: str) -> Data:
    return {"type": "summary_text", "text": text}


def _reasoning_text(text: str) -> Data:
    return {"type": "reasoning_text", "text": text}
