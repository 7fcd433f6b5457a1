"""Reasoning before an answer, split from the answer using the markers of the chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
    turn_end: str = ""  # string of several control tokens after an answer, which ends the turn
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

    Only the start of an answer can be reasoning, unless the markers are control tokens, which no text contains.
    Whitespace around reasoning is dropped. Without markers, everything is text.
    """

    def __init__(
        self,
        marks: ReasoningFormat | None,
        *,
        is_open: bool = False,
        is_split: bool = True,
        shown: str = "",
        tokens: Iterable[str] = (),
    ) -> None:
        """`is_open` is True if the prompt ends with the start marker.

        Without `is_split`, reasoning and its markers stay in the text, which then begins with `shown`, the part of the
        prompt from the start marker. `tokens` are control tokens of the markers, which are dropped elsewhere.
        """
        self._marks = marks
        self._state: Callable[[str], None] = self._pass if marks is None else self._before
        if marks is not None and is_open:
            self._state = self._inside
        self._is_split = is_split
        self._shown = shown if is_open and not is_split else ""
        self._tokens = tuple(tokens) if is_split else ()
        self._buffer = ""  # whitespace, or possible beginning of a marker
        self._space = ""  # whitespace within reasoning; dropped at its end
        self._begun = False  # True if reasoning was returned
        self._gap = ""  # before the next reasoning
        self.has_header = False  # True if the text began with the answer marker
        self._reasoning: list[str] = []
        self._text: list[str] = []

    @property
    def is_inside(self) -> bool:
        """True if the next character may be reasoning."""
        return self._state == self._inside

    def push(self, text: str) -> Split:
        """Return the parts that the next chunk of the answer completes."""
        if self._state == self._pass:
            self._text.append(text)
            return self._take()
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
        elif self._state == self._after or self._buffer.rstrip() not in self._ends:
            self._text.append(self._buffer)
        self._buffer = ""
        return self._take()

    @property
    def _ends(self) -> tuple[str, ...]:
        """Strings that are dropped at the end of an answer."""
        if self._marks is None:
            return ()
        end, turn = self._marks.answer_end, self._marks.turn_end
        return tuple(text for text in dict.fromkeys((end, turn, end + turn)) if text)

    def _pass(self, c: str) -> None:
        self._text.append(c)

    def _before(self, c: str) -> None:
        assert self._marks is not None
        self._buffer += c
        begun = self._buffer.lstrip()
        # An end marker without a start marker, as written by MiniMax M3, means that there is no reasoning.
        known = (self._marks.start, self._marks.answer, self._marks.end)
        if begun and begun in known:
            if begun != self._marks.answer:
                self._keep(self._buffer)
            self._buffer = ""
            self._state = self._inside if begun == self._marks.start else self._after
            self.has_header = begun == self._marks.answer
        elif not any(mark.startswith(begun) for mark in known):
            stray = next((token for token in self._tokens if begun.startswith(token)), None)
            rest, self._buffer = self._buffer if stray is None else begun.removeprefix(stray), ""
            self._state = self._before if stray is not None else self._behind
            for character in rest:
                self._state(character)

    def _inside(self, c: str) -> None:
        assert self._marks is not None
        end = self._marks.end
        self._buffer += c
        if self._buffer == end:
            self._buffer = ""
            self._keep(end)
            self._state = self._after
            return
        # A header of control tokens, as of Kimi K3, also ends reasoning.
        header = self._marks.answer if self._marks.answer.startswith("<|") else end
        if self._buffer == header:
            self._buffer, self._space, self.has_header = "", "", True
            self._state = self._behind
            return
        while self._buffer and not (end.startswith(self._buffer) or header.startswith(self._buffer)):
            self._think(self._buffer[0])
            self._buffer = self._buffer[1:]

    def _keep(self, text: str) -> None:
        """Return a marker as text, if reasoning is not split from the text."""
        if not self._is_split:
            self._text += [self._shown, text]
            self._shown = ""

    def _think(self, text: str) -> None:
        if not self._is_split:
            self._keep(text)
            return
        for c in text:
            if c in _SPACE:
                self._space += c
                continue
            self._reasoning.append(self._space if self._begun else self._gap)
            self._space = ""
            self._reasoning.append(c)
            self._begun = True

    def _after(self, c: str) -> None:
        assert self._marks is not None
        if not self._buffer and c in _SPACE:
            self._keep(c)
            return
        self._buffer += c
        answer = self._marks.answer
        if self._buffer == answer:
            self._buffer = ""
            self.has_header = True
        elif not answer.startswith(self._buffer):
            buffer, self._buffer = self._buffer, ""
            self._state = self._behind
            for character in buffer:
                self._state(character)

    @property
    def _behind(self) -> Callable[[str], None]:
        """State after reasoning and header."""
        return self._answering if self._ends or self._tokens else self._pass

    def _answering(self, c: str) -> None:
        """Buffer text that may be an end marker of the answer with whitespace after it, or another marker."""
        assert self._marks is not None
        start = self._marks.start
        marks = (start, *self._tokens) if self._tokens else ()
        self._buffer += c
        while self._buffer:
            if any(end.startswith(self._buffer) or self._buffer.rstrip() == end for end in self._ends):
                return
            if any(len(mark) > len(self._buffer) and mark.startswith(self._buffer) for mark in marks):
                return
            mark = max((mark for mark in marks if self._buffer.startswith(mark)), key=len, default="")
            if mark == start and mark:
                rest, self._buffer = self._buffer[len(mark) :], ""
                self._gap, self._space, self._begun = "\n\n" if self._begun else self._gap, "", False
                self._state = self._inside
                for character in rest:
                    self._state(character)
                return
            if not mark:
                self._text.append(self._buffer[0])
            self._buffer = self._buffer[len(mark) or 1 :]

    def _take(self) -> Split:
        split = Split("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return split
