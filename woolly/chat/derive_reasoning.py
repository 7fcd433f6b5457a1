"""Derivation of reasoning markers, the strings before and after reasoning, from rendered conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from woolly.chat.reasoning import ReasoningFormat, find_reasoning
from woolly.chat.tools.derivation.align import common_start, marks_in
from woolly.chat.tools.derivation.probe import NAMES, REASONING_FIELDS, TEXT, THOUGHT, USER, TemplateProbe, arguments_of

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate

_MAX_MARKS = 3
_MAX_HEADER = 48
_CALL = [(NAMES[0], arguments_of(0))]


@dataclass(frozen=True)
class DerivedReasoning:
    """Markers of reasoning, and the field of a message in which the template expects it."""

    marks: ReasoningFormat | None
    field: str | None = None  # None: the template does not show reasoning
    is_derived: bool = False


def derive_reasoning(template: ChatTemplate, probe: TemplateProbe) -> DerivedReasoning:
    """Return a template's reasoning markers, derived from rendered conversations or from the table of families."""
    said, prompt = probe.answer(TEXT), probe.prompt()
    for field, thought in _thoughts(template):
        for calls in ((), _CALL):
            shown = probe.answer(TEXT, calls, thought)
            at = shown.find(THOUGHT, shown.rfind(USER))
            until = shown.find(NAMES[0] if calls else TEXT, at)
            if at < 0 or until < 0:
                continue
            if calls and 0 < shown.find(TEXT, at) < until:
                until = shown.find(TEXT, at)
            before, after = shown[:at], shown[at + len(THOUGHT) : until]
            header = _headed(before, after, prompt, probe, thought)
            is_behind = before.startswith(prompt) and not calls
            marks = _paired(before, after, prompt, 1) or (header if is_behind else None)
            marks = marks or _paired(before, after, prompt, _MAX_MARKS) or header
            if marks is not None:
                marks = replace(marks, answer="") if calls else marks
                return DerivedReasoning(_with_answer(marks, said, probe), field, True)
    return DerivedReasoning(find_reasoning(template.source) or _header(said, prompt))


def _thoughts(template: ChatTemplate) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Return the possible forms of a message with reasoning, with the field name of each."""
    for field in REASONING_FIELDS:
        if re.search(rf"\b{field}\b", template.source):
            yield field, {field: THOUGHT}
    text = {"type": "text", "text": TEXT}
    if "thinking" in template.source and template.takes_parts:
        yield "content", {"content": [{"type": "thinking", "thinking": THOUGHT}, text]}
    if "thoughts" in template.source:
        blocks = [{"type": "thoughts", "text": THOUGHT}, {"type": "response", "text": TEXT}]
        yield None, {"content": {"blocks": blocks}}


def _paired(before: str, after: str, prompt: str, n_marks: int) -> ReasoningFormat | None:
    """Return the fewest markers around the reasoning that share a word, like a start tag and its end tag."""
    starts, ends = marks_in(before), marks_in(after)
    roles = {"assistant"} | _words(_header_of_user(prompt))
    for n in range(1, min(len(starts), len(ends), n_marks) + 1):
        start, end = before[starts[-n].start() :].strip(), after[: ends[n - 1].end()].strip()
        if (_words(start) & _words(end)) - roles:
            return ReasoningFormat(start, end, answer=after[ends[n - 1].end() :].strip())
    return None


def _headed(
    before: str, after: str, prompt: str, probe: TemplateProbe, thought: Mapping[str, Any]
) -> ReasoningFormat | None:
    """Return markers without a shared word: a header that may end the prompt, and the text after the reasoning."""
    if before.startswith(prompt):
        start = before[len(prompt) :].strip()
    else:
        start = prompt[len(before) :].strip() if prompt.startswith(before) else ""
    if not start:
        return None
    called = probe.answer("", _CALL, thought)
    at = called.find(THOUGHT) + len(THOUGHT)
    end = common_start(after, called[at : called.find(NAMES[0], at)])
    last = marks_in(end)[-1].end() if marks_in(end) else 0
    if last and " " in end[last:].strip():
        end = end[: last + end[last:].index(" ")]
    if not end.strip():
        return None
    return ReasoningFormat(start, end.strip(), answer=after[len(end) :].strip())


def _with_answer(marks: ReasoningFormat, said: str, probe: TemplateProbe) -> ReasoningFormat:
    """Return the markers, including the strings around the text of an answer."""
    at = said.rfind(TEXT)
    if at < 0:
        return marks
    if not marks.answer:
        lead = said[len(common_start(probe.answer(calls=_CALL), said[:at])) : at].strip()
        if marks_in(lead) and marks.start not in lead and marks.end not in lead:
            marks = replace(marks, answer=lead)
    starts, ends = marks_in(marks.answer), marks_in(said[at + len(TEXT) :])
    if starts and len(ends) >= len(starts):
        after, n = said[at + len(TEXT) :], ends[len(starts) - 1].end()
        end = after[:n].strip()
        if _words(marks.answer) & _words(end):
            last = marks_in(after)[-1].start()  # the engine stops at this token
            return replace(marks, answer_end=end, turn_end=after[n:last].strip())
    return marks


def _header(said: str, prompt: str) -> ReasoningFormat | None:
    """Return the header of an answer after the prompt, such as the recipient's name, or None if there is no header."""
    head = said[len(prompt) : said.rfind(TEXT)] if TEXT in said and said.startswith(prompt) else ""
    return ReasoningFormat("", "", answer=head) if head.strip() else None


def _header_of_user(prompt: str) -> str:
    """Return the end of the string before a user's message."""
    before = prompt[: prompt.rfind(USER)][-_MAX_HEADER:]
    marks = marks_in(before)[-2:]
    return before[marks[0].start() :] if marks else ""


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[^\W_]{3,}", text)}
