"""ToolParser: streaming parser of calls in all formats."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from woolly.chat.events import CallArguments, CallStart, Event, Text
from woolly.chat.tools.element_calls import ElementScanner
from woolly.chat.tools.json_calls import CallScanner, Scanner, Status
from woolly.chat.tools.keyed_calls import KeyedScanner
from woolly.chat.tools.labeled_calls import LabelScanner
from woolly.chat.tools.pythonic_calls import PythonScanner
from woolly.chat.tools.tagged_calls import TagScanner

if TYPE_CHECKING:
    from woolly.chat.tools.format import Format
    from woolly.chat.tools.tool import Tool

TOKEN_START = re.compile(r"<[|｜]|\[[A-Z]|\]<\]")  # beginning of markers that are control tokens
_SPACE = frozenset(" \t\r\n")
_LETTERS = string.ascii_letters + string.digits


def make_call_id(length: int | None = None) -> str:
    """Return an id for a call in OpenAI's format, or of `length` letters and digits for templates that require them."""
    import secrets  # imported late: few answers call a tool

    if length is None:
        return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


class ToolParser:
    """Converts text to events character by character, so the result does not depend on the size of chunks.

    Text that may be the beginning of a call is buffered until it is recognized as a call or as text. Whitespace around
    calls is dropped. An incomplete call is returned with the arguments so far.
    """

    def __init__(
        self,
        format: Format,
        tools: Iterable[Tool],
        *,
        max_calls: int | None = None,
        in_reasoning: bool = False,
        make_id: Callable[[int | None], str] = make_call_id,
    ) -> None:
        """`tools` are the tools of the request. After `max_calls` calls, the rest of the answer is dropped.

        With `in_reasoning`, a call begins with a marker that is a control token or begins a line, and has the name of a
        tool of the request, because reasoning may describe calls.
        """
        self._in_reasoning = in_reasoning
        self._needs_lead = False
        self._format = format
        self._schemas = {tool.name: tool.schema for tool in tools}
        self._max_calls = max_calls
        self._make_id = make_id
        self._closers = dict(format.marks + format.loose)
        self._loose = frozenset(["", *(mark for mark, _ in format.loose)])
        # Strings that are dropped before a call.
        self._leads = heads = [format.lead.replace("{name}", name) for name in self._schemas] if format.lead else []
        self._heads = frozenset(
            head for head in (format.section[0], format.text_end, format.between.strip(), *heads) if head
        )
        self._closers |= {head: "" for head in self._heads if head not in self._closers}
        self._begins = frozenset("{[").union(mark[0] for mark in self._closers)
        self._events: list[Event] = []
        self._out: list[str] = []  # text of the current event
        self._state = self._in_text
        self._space = ""  # buffered whitespace; dropped if a call follows
        self._buffer = ""  # may be the beginning of a marker
        self._seen_text = in_reasoning
        self._is_after_call = self._is_over = self._has_shown = False
        self.n_calls = 0

        # State of the current part between markers, or object without markers.
        self._raw: list[str] = []  # complete text, until it is recognized as a call
        self._mark = ""
        self._ends: tuple[str, ...] = ()  # strings that may follow the last call; the last string ends the part
        self._in_array = False
        self._n_before = 0
        self._scanner: Scanner | None = None

    def expect_header(self) -> None:
        """Read a call after text only behind the header of a message to the tool, if the format has such headers."""
        self._needs_lead = bool(self._leads)

    def push(self, text: str) -> list[Event]:
        """Return the events that the next chunk of the answer completes."""
        for character in text:
            if self._is_over:
                break
            self._state(character)
        return self._take()

    def finish(self) -> list[Event]:
        """Return the events of buffered text at the end of the answer."""
        if not self._is_over:
            if self._state == self._in_text:
                self._show(self._buffer)
            elif self._raw:
                self._give_up()
            elif self.is_in_call and self._scanner is not None:
                rest = self._scanner.rest()
                self._add_arguments(self._scanner.take())
                self._show(rest)
            if not self._is_after_call:
                self._out.append(self._space)
        self._is_over = True
        return self._take()

    @property
    def is_in_call(self) -> bool:
        """True between the first and the last character of a call's arguments."""
        return self._state == self._in_call and self._scanner is not None and self._scanner.name is not None

    # Text, in which a call may begin.

    def _in_text(self, c: str) -> None:
        if not self._buffer and c not in self._begins:
            self._show(c)  # most characters
            return
        self._buffer += c
        while self._buffer and not self._may_grow(self._buffer):
            # Use the longest marker: ```json instead of ```.
            mark = max((mark for mark in self._closers if self._buffer.startswith(mark)), key=len, default="")
            is_bare = not mark and not self.n_calls and self._may_be_bare()
            if mark and mark not in self._heads and not self._may_open(mark):
                mark = ""
            if mark in self._heads:
                self._space += mark  # dropped with the whitespace if a call follows
                self._buffer = self._buffer[len(mark) :]
            elif mark or is_bare:
                rest, self._buffer = self._buffer[len(mark) :], ""
                self._open(mark)
                for character in rest:
                    self._state(character)
                return
            else:
                first, self._buffer = self._buffer[0], self._buffer[1:]
                self._show(first)

    def _may_grow(self, buffer: str) -> bool:
        return any(len(mark) > len(buffer) and mark.startswith(buffer) for mark in self._closers)

    def _may_be_bare(self) -> bool:
        """Return True if an object or array without a marker begins the answer, or a line if there are no markers."""
        if not self._seen_text:
            return self._buffer[0] in "{["
        return self._format.is_bare and not self._in_reasoning and self._buffer[0] == "{" and "\n" in self._space

    def _may_open(self, mark: str) -> bool:
        """Return True if a marker may begin a call at this place."""
        if self._needs_lead:
            return any(lead in self._space for lead in self._leads)
        if not self._in_reasoning:
            return True
        return not self._has_shown or "\n" in self._space or TOKEN_START.match(mark) is not None

    def _show(self, text: str) -> None:
        for c in text:
            if c in _SPACE:
                self._space += c
                continue
            if self._seen_text or not self._is_after_call:
                self._out.append(self._space)
            self._space = ""
            self._out.append(c)
            self._seen_text = self._has_shown = True
            self._is_after_call = False

    def _open(self, mark: str) -> None:
        format = self._format
        self._mark = mark
        last = format.label.end.strip() if format.label is not None else ""
        self._ends = tuple(end for end in (last, self._closers.get(mark, ""), format.section[1]) if end)
        self._raw = [mark]
        self._in_array = False
        self._n_before = self.n_calls
        self._state = self._after_mark
        if format.tags is not None and mark == format.tags.name[0].strip():  # the model omitted the marker before it
            self._raw = []
            for character in mark:
                self._state(character)

    def _give_up(self, c: str = "") -> None:
        """Treat everything since the marker as text, without `c`."""
        raw, self._raw = "".join(self._raw), []
        self._state = self._in_text
        if raw:
            # Not parsed again, because text that consists of markers would take quadratic time.
            self._show(raw)
        if c:
            self._in_text(c)

    # Between a start marker and its end marker.

    def _after_mark(self, c: str) -> None:
        if c in _SPACE and self._mark:
            self._raw.append(c)
        elif c == "{":
            self._begin_object(c)
        elif c == "[":
            self._raw.append(c)
            self._in_array = True
            self._state = self._between_objects
        elif scanner := self._new_scanner():
            self._begin(scanner, c)
        else:
            self._give_up(c)

    def _new_scanner(self) -> Scanner | None:
        """Return a scanner for calls that are not JSON objects."""
        format = self._format
        if self._in_array:
            return PythonScanner(self._accepts()) if format.is_python else None
        if self._mark in self._loose:
            return None
        if format.label is not None:
            return LabelScanner(format.label)
        if format.tags is not None and format.tags.is_element:
            return ElementScanner(format.tags, self._schemas)
        if format.tags is None:
            return None
        return TagScanner(format.tags, self._schemas, (*self._ends, self._mark, format.section[0]))

    def _accepts(self) -> Callable[[str], bool]:
        """Return a predicate for tool names. Without a marker, only tools of the request are accepted."""
        is_strict = self._mark in self._loose or self._in_reasoning
        return self._schemas.__contains__ if is_strict else bool

    def _begin_object(self, c: str) -> None:
        if self._format.is_keyed:
            self._begin(KeyedScanner(self._schemas.__contains__), c)
        else:
            keys = {"names": self._format.names, "arguments": self._format.arguments}
            self._begin(CallScanner(self._accepts(), strict=self._mark in self._loose, **keys), c)

    def _begin(self, scanner: Scanner, c: str) -> None:
        self._scanner = scanner
        self._state = self._in_call
        self._in_call(c)

    def _in_call(self, c: str) -> None:
        scanner = self._scanner
        assert scanner is not None
        was_known = scanner.name is not None
        status = scanner.push(c)
        if scanner.name is not None and not was_known and self._in_reasoning and scanner.name not in self._schemas:
            status = Status.FAILED
        elif scanner.name is not None:
            if not was_known:
                self._start_call(scanner.name, scanner.id)
            self._add_arguments(scanner.take())
        elif status is not Status.FAILED:
            self._raw.append(c)
        if status is Status.FAILED:
            self._give_up(c)
        elif status is not Status.OPEN:
            self._end_call()
            if status is Status.BROKEN and not self._is_over:
                rest = scanner.rest()
                # A marker may follow the malformed part. The part itself is not parsed again.
                marks = (*self._closers, *self._ends)
                n = max((n for n in range(len(rest)) if any(m.startswith(rest[-n:]) for m in marks if n)), default=0)
                self._show(rest[: len(rest) - n])
                for character in rest[len(rest) - n :] + c:
                    self._state(character)

    def _between_objects(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif c in _SPACE or c == ",":
            self._keep(c)
        elif c != "]" and (scanner := self._new_scanner()):
            self._begin(scanner, c)
        elif self.n_calls > self._n_before:
            self._state = self._after_calls
            if c != "]":
                self._after_calls(c)
        else:
            self._give_up(c)

    def _after_calls(self, c: str) -> None:
        if self._buffer or any(c == end[0] for end in self._ends):
            self._buffer += c
            if self._buffer in self._ends:
                self._state = self._in_text if self._buffer == self._ends[-1] else self._after_calls
                self._buffer = ""
            elif not any(end.startswith(self._buffer) for end in self._ends):
                rest, self._buffer = self._buffer, ""
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
            self._events.append(CallArguments(self.n_calls - 1, text))

    def _end_call(self) -> None:
        has_end = self._ends or self._format.tags is None  # otherwise the scanner has read it
        self._state = self._between_objects if self._in_array else self._after_calls if has_end else self._in_text
        self._is_over = self.n_calls == self._max_calls

    def _flush(self) -> None:
        if text := "".join(self._out):
            self._events.append(Text(text))
        self._out.clear()

    def _take(self) -> list[Event]:
        """Return the events so far. Consecutive events of the same kind are joined."""
        self._flush()
        events: list[Event] = []
        for event in self._events:
            last = events[-1] if events else None
            if isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
                events[-1] = CallArguments(event.index, last.text + event.text)
            else:
                events.append(event)
        self._events.clear()
        return events
