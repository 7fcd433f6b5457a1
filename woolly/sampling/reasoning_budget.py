"""Reasoning budget: counts the tokens of a model's reasoning, and ends it at the limit.

The tokens that end a thought take the place of the model's choice. They follow from the tokens before them alone, so
that batches, replays and replicas write the same answer; a reader sees the mark as if the model had written it.
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
    after: str = ""  # what the model writes between its reasoning and the rest
    answer: str = ""  # and before an answer, if it could begin another thought there
    shown: tuple[int, ...] = ()  # the control tokens among the marks
    is_open: bool = False  # the prompt ends with the start
    may_call: bool = False  # a call may follow in place of an answer


class ReasoningBudget:
    """Follows one answer token by token.

    A thought is at the start of an answer. Where `marks.answer` tells thoughts and answers apart, as in the channels of
    gpt-oss, another one may follow; all of them share one budget.
    """

    def __init__(self, marks: ReasoningMarkers, tokenizer: Tokenizer, budget: int, message: str = "") -> None:
        """`message` comes before the end of a thought that is cut off."""
        self._marks = marks
        self._tokenizer = tokenizer
        self._detokenizer = StreamDetokenizer(tokenizer, strip_prefix=False, shown=frozenset(marks.shown))
        self._budget = budget
        self._message = message
        self._buffer = ""  # text that may be the beginning of a mark
        self._n = 0  # tokens of thoughts so far
        self._n_cut = 0
        self.is_inside = marks.is_open
        self.is_over = False  # no thought can follow
        self.forced: Sequence[int] = ()  # the next tokens of the answer
        self._end_if_due()

    def saw(self, token: int) -> None:
        """Goes on after a token of the answer."""
        was_forced = bool(self.forced)
        if was_forced:
            self.forced = self.forced[1:] if self.forced[0] == token else ()
        self._n += self.is_inside and not was_forced
        self._buffer += self._detokenizer.push(token)
        self._read()
        if not self.forced:
            self._end_if_due()

    def end(self) -> bool:
        """Ends the thought with the next token; whether the answer is within one."""
        if self.is_inside and not self.forced:
            self._budget = self._n
            self._end_if_due()
        return self.is_inside

    def refuse(self) -> None:
        """Forces nothing more, because a grammar does not allow it."""
        self.forced, self.is_over = (), True

    def _read(self) -> None:
        """Reads the text so far up to what may be a part of the next mark."""
        marks = self._marks
        while not self.is_over:
            mark = marks.end if self.is_inside else marks.start
            at = self._buffer.find(mark)
            if not self.is_inside and not marks.answer and self._buffer[: max(at, 0)].strip():
                at = -1  # there was an answer before it
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
        # A mark that has begun is completed: a second one after its beginning would be text.
        text = marks.end[len(self._buffer) :] if self._buffer else self._message + marks.end
        text += marks.after
        if not marks.may_call or self._n_cut:
            text += marks.answer  # else a model that thinks again, and is cut off again, would never come to an end
        self._n_cut += 1
        ids = self._tokenizer.encode(text, add_special=False, parse_special=True)
        self.forced = tuple(ids)


def _tail(text: str, mark: str) -> str:
    """The longest end of a text that a mark begins with."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-n:]):
            return text[-n:]
    return ""
