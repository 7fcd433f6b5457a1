"""ChannelSplitter: splits answers whose messages each have a channel, such as those of gpt-oss (harmony format)."""

from __future__ import annotations

import re
from typing import Literal

from woolly.chat.reasoning import Split

_HEADS = ("<|start|>", "<|channel|>", "to=")
_BODY = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_THOUGHT = "<|channel|>analysis<|message|>"
_MAX_HEADER = 256


class ChannelSplitter:
    """Splits character by character, so the result does not depend on how the text is divided into chunks.

    The channel `analysis` is reasoning, a message to a function is a call, and all other messages are text. A call
    stays in the text, and its header is normalized to the form that ToolParser reads. Text without a header is also an
    answer.
    """

    has_header = True  # each message has one

    is_inside = False  # calls are messages, and never within reasoning

    def __init__(self, *, is_open: bool = False, is_split: bool = True) -> None:
        """`is_open` is True if the prompt ends with the header of a reasoning message.

        Without `is_split`, a reasoning message with its markers is text.
        """
        self._is_split = is_split
        self._kind: Literal["reasoning", "text", "call"] = "reasoning" if is_open else "text"
        self._in_string = self._is_escaped = False  # within the arguments of a call
        self._state = self._inside if is_open else self._before
        self._buffer = ""  # a header, or text that may be the beginning of a marker
        self._out: dict[str, list[str]] = {"reasoning": [], "text": []}
        self._shown: set[str] = set()  # kinds of messages returned so far
        self._space = ""  # whitespace between two messages of the same kind

    def push(self, text: str) -> Split:
        """Return the parts that the next chunk of the answer completes."""
        for character in text:
            self._state(character)
        return self._take()

    def finish(self) -> Split:
        """Return the buffered text at the end of the answer. An incomplete header is dropped."""
        if self._state == self._inside or "<|" not in self._buffer or "to=" in self._buffer:
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
            # A header may begin twice; the last channel counts.
            channel = ([None, *re.finditer(r"<\|channel\|>\s*(\w+)", header)])[-1]
            if function := re.search(r"to=functions\.([\w.-]+)", header):
                self._open("call")
                self._out["text"].append(f"<|channel|>commentary to=functions.{function[1]}{_BODY}")
            else:
                if re.search(r"to=(?!user\b|assistant\b|all\b)[\w.-]", header):
                    self._buffer = header.removeprefix(_HEADS[0])  # to an unknown tool
                self._open("reasoning" if channel is not None and channel[1] == "analysis" else "text")
        elif len(self._buffer) > _MAX_HEADER or (c == "\n" and "<|" not in self._buffer):
            self._open("text")

    def _open(self, kind: Literal["reasoning", "text", "call"]) -> None:
        """Begin a message. The buffered text is its beginning."""
        self._kind = kind
        self._in_string = self._is_escaped = False
        is_thought = kind == "reasoning" and not self._is_split
        self._space = "\n\n" if kind in self._shown and not is_thought else ""
        if is_thought:
            self._out["text"].append(_THOUGHT)
        self._state = self._inside
        buffer, self._buffer = self._buffer, ""
        for character in buffer:
            self._inside(character)

    def _inside(self, c: str) -> None:
        if self._kind == "call" and not self._buffer:
            # Markers within a string are part of it.
            was_in_string = self._in_string
            self._in_string = (c != '"' or self._is_escaped) if was_in_string else c == '"'
            self._is_escaped = was_in_string and c == "\\" and not self._is_escaped
            if was_in_string:
                self._show(c)
                return
        self._buffer += c
        if self._buffer in _ENDS:
            if self._kind == "call":
                self._out["text"].append("<|call|>")
            elif self._kind == "reasoning" and not self._is_split:
                self._out["text"].append("<|end|>")
            self._state = self._in_header if self._buffer == _HEADS[0] else self._before
            self._buffer = self._buffer if self._buffer == _HEADS[0] else ""
            return
        while self._buffer and not any(end.startswith(self._buffer) for end in _ENDS):
            self._show(self._buffer[0])
            self._buffer = self._buffer[1:]

    def _show(self, text: str) -> None:
        if text:
            is_thought = self._kind == "reasoning" and self._is_split
            self._out["reasoning" if is_thought else "text"].append(self._space + text)
            self._shown.add(self._kind)
            self._space = ""

    def _take(self) -> Split:
        split = Split("".join(self._out["reasoning"]), "".join(self._out["text"]))
        self._out["reasoning"].clear()
        self._out["text"].clear()
        return split
