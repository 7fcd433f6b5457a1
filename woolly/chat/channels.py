"""The ChannelSplitter: splits an answer of messages, each with a channel, as gpt-oss models write them (harmony)."""

from __future__ import annotations

import re
from typing import Literal

from woolly.chat.reasoning import Split

_HEADS = ("<|start|>", "<|channel|>", "to=")
_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_MAX_HEADER = 256


class ChannelSplitter:
    """Splits character by character, so that how the text is cut into pieces changes nothing.

    The channel `analysis` is reasoning, a message to a function is a call, and the rest is text. A call stays in the
    text, with its header in the one form that a ToolParser reads. Text without a header is an answer too.
    """

    has_header = True  # of each message

    def __init__(self, *, is_open: bool = False) -> None:
        """`is_open`: the prompt ends with the header of reasoning."""
        self._kind: Literal["reasoning", "text", "call"] = "reasoning" if is_open else "text"
        self._state = self._inside if is_open else self._before
        self._buffer = ""  # a header, or what may be the beginning of a mark
        self._out: dict[str, list[str]] = {"reasoning": [], "text": []}
        self._shown: set[str] = set()  # kinds of which a message was shown
        self._space = ""  # between two messages of one kind

    def push(self, text: str) -> Split:
        """Returns what the next piece of the answer completes."""
        for character in text:
            self._state(character)
        return self._take()

    def finish(self) -> Split:
        """Returns what was held back, at the end of the answer; a header that does not end is dropped."""
        if self._state == self._inside or "<|" not in self._buffer:
            self._show(self._buffer)
        self._buffer = ""
        return self._take()

    def _before(self, c: str) -> None:
        self._buffer += c
        begun = self._buffer.lstrip()
        if begun in _HEADS:
            self._buffer = begun
            self._state = self._in_header
        elif not any(head.startswith(begun) for head in _HEADS):
            self._open("text")

    def _in_header(self, c: str) -> None:
        self._buffer += c
        if self._buffer.endswith(_BODY):
            header, self._buffer = self._buffer, ""
            channel = re.search(r"<\|channel\|>\s*(\w+)", header)
            if function := re.search(r"to=functions\.([\w.-]+)", header):
                self._open("call")
                self._out["text"].append(f"<|channel|>commentary to=functions.{function[1]}{_BODY}")
            else:
                self._open("reasoning" if channel is not None and channel[1] == "analysis" else "text")
        elif len(self._buffer) > _MAX_HEADER or (c == "\n" and "<|" not in self._buffer):
            self._open("text")

    def _open(self, kind: Literal["reasoning", "text", "call"]) -> None:
        """Begins a message; what is held is its text."""
        self._kind = kind
        self._space = "\n\n" if kind in self._shown else ""
        self._state = self._inside
        buffer, self._buffer = self._buffer, ""
        for character in buffer:
            self._inside(character)

    def _inside(self, c: str) -> None:
        self._buffer += c
        if self._buffer in _ENDS:
            if self._kind == "call":
                self._out["text"].append("<|call|>")
            self._state = self._in_header if self._buffer == _HEADS[0] else self._before
            self._buffer = self._buffer if self._buffer == _HEADS[0] else ""
            return
        while self._buffer and not any(end.startswith(self._buffer) for end in _ENDS):
            self._show(self._buffer[0])
            self._buffer = self._buffer[1:]

    def _show(self, text: str) -> None:
        if text:
            self._out["reasoning" if self._kind == "reasoning" else "text"].append(self._space + text)
            self._shown.add(self._kind)
            self._space = ""

    def _take(self) -> Split:
        split = Split("".join(self._out["reasoning"]), "".join(self._out["text"]))
        self._out["reasoning"].clear()
        self._out["text"].clear()
        return split
