"""Reasoning budget: counts the reasoning tokens of a model and ends the reasoning at the limit.

The tokens that end the reasoning replace the model's choice. They only depend on previous tokens, so batches, replays
and replicas give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from woolly.tokens import StreamDetokenizer, Tokenizer


@dataclass(frozen=True)
class ReasoningMarkers:
    """Start and end markers of a model's reasoning."""

    start: str
    end: str
    after: str = ""  # text between the reasoning and the rest
    answer: str = ""  # text before an answer, if further reasoning could begin there
    shown: tuple[int, ...] = ()  # control tokens in the markers
    is_open: bool = False  # True if the prompt ends with the start marker
    may_call: bool = False  # True if a tool call may follow instead of an answer


class ReasoningBudget:
    """Tracks one answer, token by token.

    Reasoning is at the start of an answer. If `marks.answer` separates reasoning from answers, as in the channels of
    gpt-oss, more reasoning may follow. All reasoning shares one budget.
    """

    def __init__(self, marks: ReasoningMarkers, tokenizer: Tokenizer, budget: int, message: str = "") -> None:
        """`message` is inserted before the end of reasoning that exceeds its budget."""
        self._marks = marks
        self._tokenizer = tokenizer
        self._detokenizer = StreamDetokenizer(tokenizer, strip_prefix=False, shown=frozenset(marks.shown))
        self._budget = budget
        self._message = message
        self._buffer = ""  # text that may be the beginning of a marker
        self._n = 0  # reasoning tokens so far
        self._n_cut = 0
        self.is_inside = marks.is_open
        self.is_over = False  # True if no reasoning can follow
        self.forced: Sequence[int] = ()  # next tokens of the answer
        self._end_if_due()

    def observe(self, token: int) -> None:
        """Process the next token of the answer."""
        was_forced = bool(self.forced)
        if was_forced:
            self.forced = self.forced[1:] if self.forced[0] == token else ()
        self._n += self.is_inside and not was_forced
        self._buffer += self._detokenizer.push(token)
        self._read()
        if not self.forced:
            self._end_if_due()

    def end(self) -> bool:
        """End the reasoning with the next token; return True if the answer is in its reasoning."""
        if self.is_inside and not self.forced:
            self._budget = self._n
            self._end_if_due()
        return self.is_inside

    def refuse(self) -> None:
        """Cancel the forced tokens, because a grammar does not allow them."""
        self.forced, self.is_over = (), True

    def _read(self) -> None:
        """Process the buffered text, except for a partial marker at its end."""
        marks = self._marks
        while not self.is_over:
            mark = marks.end if self.is_inside else marks.start
            at = self._buffer.find(mark)
            if not self.is_inside and not marks.answer and self._buffer[: max(at, 0)].strip():
                at = -1  # the answer has already begun
            if at < 0:
                break
            self._buffer = self._buffer[at + len(mark) :]
            if self.is_inside and not marks.answer:
                self.is_over = True
            self.is_inside = not self.is_inside
        if not self.is_inside and not marks.answer and not marks.start.startswith(self._buffer.lstrip()):
            self.is_over = True
        mark = marks.end if self.is_inside else marks.start
        self._buffer = self._buffer if not self.is_inside and not marks.answer else _tail(self._buffer, mark)

    def _end_if_due(self) -> None:
        if not self.is_inside or self._n < self._budget:
            return
        marks = self._marks
        # Complete a partial marker: a second marker after it would be text.
        text = marks.end[len(self._buffer) :] if self._buffer else self._message + marks.end
        text += marks.after
        if not marks.may_call or self._n_cut:
            text += marks.answer  # otherwise the model could reason and be cut off forever
        self._n_cut += 1
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        self.forced = tuple(ids)


def _tail(text: str, mark: str) -> str:
    """Return the longest end of a text that is the beginning of a marker."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-n:]):
            return text[-n:]
    return ""
