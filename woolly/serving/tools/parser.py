"""The ToolParser: finds calls in an answer as it comes, in any of the formats."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection

from woolly.serving.tools.event import Arguments, CallStart, Event, Text
from woolly.serving.tools.format import Format
from woolly.serving.tools.scanner import CallScanner, ObjectScanner, Status

__all__ = ["ToolParser", "make_call_id"]

_SPACE = frozenset(" \t\r\n")
_LETTERS = string.ascii_letters + string.digits
_LABEL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\]\s*)?")
_MAX_LABEL = 256


def make_call_id(length: int | None = None) -> str:
    """An id for a call: OpenAI's kind, or so many letters and digits where a template wants that."""
    if length is None:
        return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


class ToolParser:
    """Turns text into events, character by character, so that no split of the text changes what comes out.

    Text that may be the beginning of a call is held back until it is known to be one. Space around calls is dropped,
    a call that ends in the middle keeps what it has, and what only looks like a call is given as text.
    """

    def __init__(
        self,
        format: Format,
        names: Collection[str],
        *,
        max_calls: int | None = None,
        make_id: Callable[[int | None], str] = make_call_id,
    ) -> None:
        """`names` are the tools that were given. After `max_calls` calls the rest of the answer is dropped."""
        self._format = format
        self._names = frozenset(names)
        self._max_calls = max_calls
        self._make_id = make_id
        self._closers = dict(format.marks + format.loose)
        self._loose = frozenset(["", *(mark for mark, _ in format.loose)])
        self._begins = frozenset("{[").union(mark[0] for mark in self._closers)
        self._events: list[Event] = []
        self._out: list[str] = []  # text of the event under way
        self._state = self._in_text
        self._space = ""  # held back: it is dropped where a call follows
        self._held = ""  # may be the beginning of a mark
        self._seen_text = self._is_after_call = self._is_over = False
        self.n_calls = 0

        # Of the marked part, or the bare object, under way.
        self._raw: list[str] = []  # all of it, until it is certain to be a call
        self._mark = ""
        self._closer = ""
        self._in_array = False
        self._n_before = 0
        self._label = ""
        self._scanner: CallScanner | None = None
        self._object: ObjectScanner | None = None

    def push(self, text: str) -> list[Event]:
        """What the next piece of the answer brings."""
        for character in text:
            if self._is_over:
                break
            self._state(character)
        return self._take()

    def finish(self) -> list[Event]:
        """What was held back, when no more will come."""
        if not self._is_over:
            if self._state == self._in_text:
                self._show(self._held)
            elif self._raw:
                self._give_up()
            if not self._is_after_call:
                self._out.append(self._space)
        self._is_over = True
        return self._take()

    # Text, and where a call may begin.

    def _in_text(self, c: str) -> None:
        if not self._held and c not in self._begins:
            self._show(c)  # most are
            return
        self._held += c
        while self._held and not self._may_grow(self._held):
            # The longest mark counts: ```json is more than ```.
            mark = max((mark for mark in self._closers if self._held.startswith(mark)), key=len, default="")
            is_bare = not mark and self._held[0] in "{[" and not self._seen_text and not self.n_calls
            if mark or is_bare:
                rest, self._held = self._held[len(mark) :], ""
                self._open(mark)
                for character in rest:
                    self._state(character)
                return
            first, self._held = self._held[0], self._held[1:]
            self._show(first)

    def _may_grow(self, held: str) -> bool:
        return any(len(mark) > len(held) and mark.startswith(held) for mark in self._closers)

    def _show(self, text: str) -> None:
        for c in text:
            if c in _SPACE:
                self._space += c
                continue
            if self._seen_text or not self._is_after_call:
                self._out.append(self._space)
            self._space = ""
            self._out.append(c)
            self._seen_text = True
            self._is_after_call = False

    def _open(self, mark: str) -> None:
        self._mark = mark
        self._closer = self._closers.get(mark, "")
        self._raw = [mark]
        self._in_array = False
        self._n_before = self.n_calls
        self._label = ""
        self._state = self._after_mark

    def _give_up(self, c: str = "") -> None:
        """What was read since the mark is text after all; `c` was not taken."""
        raw, self._raw = "".join(self._raw), []
        self._state = self._in_text
        if raw:
            # Not looked at again: a text of nothing but marks would cost the square of its length.
            self._show(raw)
        if c:
            self._in_text(c)

    # Between a mark and what closes it.

    def _after_mark(self, c: str) -> None:
        if c in _SPACE and self._mark:
            self._raw.append(c)
        elif c == "{":
            self._begin_object(c)
        elif c == "[":
            self._raw.append(c)
            self._in_array = True
            self._state = self._between_objects
        elif self._format.is_named and (c.isalnum() or c in "_-."):
            self._raw.append(c)
            self._label = c
            self._state = self._in_label
        else:
            self._give_up(c)

    def _begin_object(self, c: str) -> None:
        needs_names = self._mark in self._loose
        accepts = self._names.__contains__ if needs_names else bool
        self._scanner = CallScanner(accepts, strict=needs_names)
        self._state = self._in_object
        self._in_object(c)

    def _in_object(self, c: str) -> None:
        scanner = self._scanner
        assert scanner is not None
        was_known = scanner.name is not None
        status = scanner.push(c)
        if scanner.name is not None:
            if not was_known:
                self._start_call(scanner.name, None)
            self._add_arguments(scanner.take())
        elif status is not Status.FAILED:
            self._raw.append(c)
        if status is Status.FAILED:
            self._give_up(c)
        elif status is not Status.OPEN:
            self._end_call()
            if status is Status.BROKEN and not self._is_over:
                self._state(c)

    def _in_label(self, c: str) -> None:
        if c == "{":
            if match := _LABEL.fullmatch(self._label):
                self._object = ObjectScanner()
                self._start_call(match[1], match[2])
                self._state = self._in_plain_object
                self._in_plain_object(c)
                return
            self._give_up(c)
        elif c == "\n" or len(self._label) > _MAX_LABEL:
            self._give_up(c)
        else:
            self._raw.append(c)
            self._label += c

    def _in_plain_object(self, c: str) -> None:
        assert self._object is not None
        self._add_arguments(c)
        if self._object.push(c):
            self._end_call()

    def _between_objects(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif c in _SPACE or c == ",":
            self._keep(c)
        elif self.n_calls > self._n_before:
            self._state = self._after_calls
            if c != "]":
                self._after_calls(c)
        else:
            self._give_up(c)

    def _after_calls(self, c: str) -> None:
        if self._held or (self._closer and c == self._closer[0]):
            self._held += c
            if self._held == self._closer:
                self._held = ""
                self._state = self._in_text
            elif not self._closer.startswith(self._held):
                rest, self._held = self._held, ""
                self._state = self._in_text
                for character in rest:
                    self._state(character)
        elif c == "{":
            self._raw = []
            self._n_before = self.n_calls
            self._begin_object(c)
        elif c not in _SPACE and c not in ";,":
            self._state = self._in_text
            self._in_text(c)

    def _keep(self, c: str) -> None:
        if self._raw:
            self._raw.append(c)

    # Calls.

    def _start_call(self, name: str, id: str | None) -> None:
        self._raw = []
        self._space = ""
        self._is_after_call = True
        self._flush()
        self._events.append(CallStart(self.n_calls, id or self._make_id(self._format.id_length), name))
        self.n_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text:
            self._events.append(Arguments(self.n_calls - 1, text))

    def _end_call(self) -> None:
        self._state = self._between_objects if self._in_array else self._after_calls
        self._is_over = self.n_calls == self._max_calls

    def _flush(self) -> None:
        if text := "".join(self._out):
            self._events.append(Text(text))
        self._out.clear()

    def _take(self) -> list[Event]:
        """The events so far, neighbours of one kind joined."""
        self._flush()
        events: list[Event] = []
        for event in self._events:
            last = events[-1] if events else None
            if isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
                events[-1] = Arguments(event.index, last.text + event.text)
            else:
                events.append(event)
        self._events.clear()
        return events
