"""Reasoning: what a model thinks before it answers, split from the answer where its template marks it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REASONING_MARKS", "ReasoningMarks", "ReasoningSplitter", "Split", "find_reasoning"]

_SPACE = frozenset(" \t\r\n")


@dataclass(frozen=True)
class ReasoningMarks:
    """What stands before and after a model's reasoning."""

    start: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends where the reasoning has begun, so that the answer goes on with it."""
        return prompt.rstrip().endswith(self.start)


REASONING_MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
)


def find_reasoning(template: str) -> ReasoningMarks | None:
    """The marks that a chat template's source shows."""
    return next((marks for marks in REASONING_MARKS if marks.end in template or marks.start in template), None)


@dataclass(frozen=True)
class Split:
    """A piece of the reasoning, of the answer, or of both."""

    reasoning: str = ""
    text: str = ""


class ReasoningSplitter:
    """Splits an answer as it comes, character by character, so that no split of the text changes what comes out.

    Reasoning stands at the start of an answer or nowhere; space at its ends is dropped. Without marks all is text.
    """

    def __init__(self, marks: ReasoningMarks | None, *, is_open: bool = False) -> None:
        """`is_open` says that the prompt has opened the reasoning already."""
        self._marks = marks
        self._state = self._pass if marks is None else self._inside if is_open else self._before
        self._held = ""  # space, or what may be the beginning of a mark
        self._space = ""  # of the reasoning: dropped where it ends
        self._begun = False  # whether reasoning was shown
        self._reasoning: list[str] = []
        self._text: list[str] = []

    @property
    def is_answering(self) -> bool:
        """Whether the reasoning is over, or never was."""
        return self._state in (self._pass, self._after)

    def push(self, text: str) -> Split:
        """What the next piece of the answer brings."""
        if self._state == self._pass:
            return Split(text=text)
        for number, character in enumerate(text):
            if self._state == self._pass:
                self._text.append(text[number:])
                break
            self._state(character)
        return self._take()

    def finish(self) -> Split:
        """What was held back, when no more will come."""
        if self._state == self._before:
            self._text.append(self._held)
        elif self._state == self._inside:
            self._think(self._held)
        self._held = ""
        return self._take()

    def _pass(self, c: str) -> None:
        self._text.append(c)

    def _before(self, c: str) -> None:
        assert self._marks is not None
        self._held += c
        begun = self._held.lstrip()
        if begun == self._marks.start:
            self._held = ""
            self._state = self._inside
        elif not self._marks.start.startswith(begun):
            self._text.append(self._held)
            self._held = ""
            self._state = self._pass

    def _inside(self, c: str) -> None:
        assert self._marks is not None
        end = self._marks.end
        self._held += c
        if self._held == end:
            self._held = ""
            self._state = self._after
            return
        while self._held and not end.startswith(self._held):
            self._think(self._held[0])
            self._held = self._held[1:]

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
        if c not in _SPACE:
            self._text.append(c)
            self._state = self._pass

    def _take(self) -> Split:
        split = Split("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return split
