"""Reasoning before an answer, split from the answer using the markers of the chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Maximum reasoning tokens per requested effort, for models whose templates do not support an effort.
EFFORTS: dict[str, int | None] = {"minimal": 512, "low": 2048, "medium": 8192, "high": None, "xhigh": None, "max": None}

_SPACE = frozenset(" \t\r\n")


@dataclass(frozen=True)
class ReasoningFormat:
    """Strings before and after a model's reasoning."""

    start: str
    end: str
    signs: tuple[str, ...] = ()  # strings that all occur in the template; empty: the start or the end suffices
    again: str = ""  # string between reasoning and answer
    answer: str = ""  # string before a text answer, and optional string after it
    answer_end: str = ""
    has_channels: bool = False  # an answer has several messages, which ChannelSplitter splits

    @property
    def tokens(self) -> list[str]:
        """Markers that may be control tokens."""
        return [mark for text in (self.start, self.end) for mark in re.findall(r"<[^<>\s]+>|\[/?[A-Z]+\]", text)]

    def is_open(self, prompt: str) -> bool:
        """Return True if a prompt ends with the start marker, so that the answer begins with reasoning."""
        return prompt.rstrip().endswith(self.start)

    def are_in(self, template: str) -> bool:
        """Return True if a chat template's source contains these markers."""
        if self.signs:
            return all(sign in template for sign in self.signs)
        return self.end in template or self.start in template


# In search order.
REASONING_MARKS = (
    ReasoningFormat(  # gpt-oss
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|channel|>", "<|message|>"),
        again="<|start|>assistant",
        answer="<|channel|>final<|message|>",
        has_channels=True,
    ),
    ReasoningFormat("<think>", "</think>", ("<think>", "<response>"), answer="<response>", answer_end="</response>"),
    ReasoningFormat("<think>", "</think>"),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<seed:think>", "</seed:think>"),
    *(
        ReasoningFormat(
            "<|START_THINKING|>", "<|END_THINKING|>", (f"<|START_{word}|>",), "", f"<|START_{word}|>", f"<|END_{word}|>"
        )
        for word in ("RESPONSE", "TEXT")  # Command R7B and A, and later ones
    ),
    ReasoningFormat("<|channel>thought", "<channel|>"),  # Gemma 4
    ReasoningFormat("Here is my thought process:", "Here is my response:"),  # Granite 3.2
)


def find_reasoning(template: str) -> ReasoningFormat | None:
    """Return the reasoning markers that a chat template's source contains."""
    return next((marks for marks in REASONING_MARKS if marks.are_in(template)), None)


@dataclass(frozen=True)
class Split:
    """Chunk of the reasoning, of the answer, or of both."""

    reasoning: str = ""
    text: str = ""


class ReasoningSplitter:
    """Splits an answer character by character, so the result does not depend on how the text is divided into chunks.

    Only the start of an answer can be reasoning. Whitespace around reasoning is dropped. Without markers, everything is
    text.
    """

    def __init__(self, marks: ReasoningFormat | None, *, is_open: bool = False) -> None:
        """`is_open` is True if the prompt ends with the start marker."""
        self._marks = marks
        self._state = self._pass if marks is None else self._inside if is_open else self._before
        self._buffer = ""  # whitespace, or possible beginning of a marker
        self._space = ""  # whitespace within reasoning; dropped at its end
        self._begun = False  # True if reasoning was returned
        self.has_header = False  # True if the text began with the answer marker
        self._reasoning: list[str] = []
        self._text: list[str] = []

    def push(self, text: str) -> Split:
        """Return the parts that the next chunk of the answer completes."""
        if self._state == self._pass:
            return Split(text=text)
        for number, character in enumerate(text):
            if self._state == self._pass:
                self._text.append(text[number:])
                break
            self._state(character)
        return self._take()

    def finish(self) -> Split:
        """Return the buffered text at the end of the answer."""
        if self._state == self._before:
            self._text.append(self._buffer)
        elif self._state == self._inside:
            self._think(self._buffer)
        elif self._state == self._after or (self._marks and self._buffer.rstrip() != self._marks.answer_end):
            self._text.append(self._buffer)
        self._buffer = ""
        return self._take()

    def _pass(self, c: str) -> None:
        self._text.append(c)

    def _before(self, c: str) -> None:
        assert self._marks is not None
        self._buffer += c
        begun = self._buffer.lstrip()
        # An end marker without a start marker, as written by MiniMax M3, means that there is no reasoning.
        known = (self._marks.start, self._marks.answer, self._marks.end)
        if begun and begun in known:
            self._buffer = ""
            self._state = self._inside if begun == self._marks.start else self._after
            self.has_header = begun == self._marks.answer
        elif not any(mark.startswith(begun) for mark in known):
            self._text.append(self._buffer)
            self._buffer = ""
            self._state = self._pass

    def _inside(self, c: str) -> None:
        assert self._marks is not None
        end = self._marks.end
        self._buffer += c
        if self._buffer == end:
            self._buffer = ""
            self._state = self._after
            return
        while self._buffer and not end.startswith(self._buffer):
            self._think(self._buffer[0])
            self._buffer = self._buffer[1:]

    def _think(self, text: str) -> None:
        for c in text:
            if c in _SPACE:
                self._space += c
                continue
            if self._begun:
                self._reasoning.append(self._space)
            self._space = ""
            self._reasoning.append(c)
            self._begun = True

    def _after(self, c: str) -> None:
        assert self._marks is not None
        if not self._buffer and c in _SPACE:
            return
        self._buffer += c
        answer = self._marks.answer
        if self._buffer == answer:
            self._buffer = ""
            self.has_header = True
        elif not answer.startswith(self._buffer):
            buffer, self._buffer = self._buffer, ""
            self._state = self._answering if self._marks.answer_end else self._pass
            for character in buffer:
                self._state(character)

    def _answering(self, c: str) -> None:
        """Buffer text that may be the end marker of the answer, and whitespace after it."""
        assert self._marks is not None
        end = self._marks.answer_end
        self._buffer += c
        while self._buffer and not (end.startswith(self._buffer) or self._buffer.rstrip() == end):
            self._text.append(self._buffer[0])
            self._buffer = self._buffer[1:]

    def _take(self) -> Split:
        split = Split("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return split
