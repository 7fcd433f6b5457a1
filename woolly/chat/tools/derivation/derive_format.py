"""Derivation of a model's call format: markers, separators and argument encoding, read from rendered conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woolly.chat.events import gather
from woolly.chat.tools.derivation.align import common_end, common_start, marks_in
from woolly.chat.tools.derivation.argument_tags import find_tags
from woolly.chat.tools.derivation.payloads import (
    CallSpan,
    Payloads,
    find_labels,
    find_objects,
    find_python,
    find_unquoted,
)
from woolly.chat.tools.derivation.probe import (
    IDS,
    KEYS,
    NAMES,
    TEXT,
    TOOLS,
    TYPED,
    USER,
    VALUES,
    TemplateProbe,
    arguments_of,
)
from woolly.chat.tools.format import FENCES, Format
from woolly.chat.tools.labeled_calls import Label, label_pattern
from woolly.chat.tools.parser import ToolParser
from woolly.chat.tools.prompt import renders_tools
from woolly.chat.tools.tool import Tool
from woolly.chat.tools.unquoted_json import QUOTE

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate

_MIN_TURN = 10  # characters of the markers around a turn
_LONG_ID = "call_0123456789abcdefghijklmn"


def derive_format(probe: TemplateProbe, reasoning: str = "") -> Format | None:
    """Return the call format of a template.

    Returns None if the template renders no calls, or if a parser with the derived format does not read them back.
    `reasoning` is empty reasoning, which some templates write before calls.
    """
    calls = [(NAMES[i], arguments_of(i)) for i in (0, 1)]
    said, one, two = probe.answer(TEXT), probe.answer(calls=calls[:1]), probe.answer(calls=calls)
    if not _shows(one):
        return None
    prompt = probe.prompt()
    is_single = not (NAMES[1] in two and VALUES[1][1] in two)
    shown = one if is_single else two
    tail, text_end = _tail(probe, calls[:1], one, said)
    # Calls without text follow the end marker of a text, or empty reasoning.
    heads = {text: _head(text, said, prompt) for text in (one, shown)}
    body = shown[len(heads[shown]) :].removesuffix(tail)
    if text_end and body.startswith(text_end):
        body = body[len(text_end) :]
    if reasoning and body.startswith(reasoning):
        body = body[len(reasoning) :]
    format = _read(body, calls[:1] if is_single else calls, probe, heads[shown], prompt, said)
    if format is None:
        return None
    example = one[len(heads[one]) :].removesuffix(tail).strip()
    for name, shown_name in ((NAMES[0], "function_name"), (KEYS[0], "argument_1"), (KEYS[1], "argument_2")):
        example = example.replace(name, shown_name)
    for number, value in enumerate(VALUES[0], 1):
        example = example.replace(value, f"value_{number}")
    format = replace(
        format,
        is_single=is_single,
        id_length=_id_length(probe, calls[0]),
        text_end=text_end,
        example=example.replace(IDS[0], "123456789"),
    )
    is_right = _reads(format, one[len(heads[one]) :], calls[:1]) and (is_single or _reads(format, body, calls))
    return format if is_right else None


def _tail(probe: TemplateProbe, calls: list[tuple[str, Any]], one: str, said: str) -> tuple[str, str]:
    """Return the end of a turn, and the end of a text before calls."""
    if TEXT not in said:
        return "", ""
    both = probe.answer(TEXT, calls)
    shared = common_start(both, said)
    at = said.rfind(TEXT) + len(TEXT)
    tail = said[len(shared) :]
    if len(shared) >= at and tail.strip() and both.endswith(tail) and _shows(both):
        return tail, shared[at:].strip()
    return common_end(one[one.rfind(VALUES[0][1]) :], said[at:]), ""


def find_probe(template: ChatTemplate) -> TemplateProbe:
    """Return the first form of messages with calls that the template renders."""
    knows = renders_tools(template.source)
    forms = [TemplateProbe(template, knows, content, is_text) for content in ("", None) for is_text in (False, True)]
    call = [(NAMES[0], arguments_of(0))]
    shown = {probe: text for probe in forms if _shows(text := probe.answer(calls=call))}
    if not shown:
        return forms[0]
    # The template may render empty text as a separate turn.
    first = next(iter(shown))
    plain = replace(first, content=None)
    return plain if len(shown.get(plain, shown[first])) < len(shown[first]) - _MIN_TURN else first


def _shows(rendered: str) -> bool:
    answer = rendered[rendered.rfind(USER) :]
    return NAMES[0] in answer and VALUES[0][1] in answer


def _head(calls: str, said: str, prompt: str) -> str:
    """Return the string before an answer, which is text or calls."""
    head = common_start(calls, said if TEXT in said else prompt)
    if head.startswith(prompt) and not marks_in(head[len(prompt) :]):
        return prompt
    return head


def _id_length(probe: TemplateProbe, call: tuple[str, Mapping[str, Any]]) -> int | None:
    """Return the length of ids that the template requires, or None for any length."""
    message = {"id": _LONG_ID, "type": "function", "function": {"name": call[0], "arguments": call[1]}}
    given: list[dict[str, Any]] = [
        {"role": "user", "content": USER},
        {"role": "assistant", "content": "", "tool_calls": [message]},
    ]
    shown = probe.template.probe(given, TOOLS if probe.renders_tools else None, begins_answer=False)
    return None if shown or probe.is_text else len(IDS[0])


def _reads(format: Format, body: str, calls: list[tuple[str, Any]]) -> bool:
    """Return True if a parser of the format reads these calls from a rendered answer."""
    tools = [Tool(tool["function"]["name"], None, tool["function"]["parameters"]) for tool in TOOLS]
    parser = ToolParser(format, tools)
    answer = gather(parser.push(format.opened + body) + parser.finish())
    try:
        return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls] == calls
    except ValueError:
        return False


def _read(
    body: str, calls: list[tuple[str, Any]], probe: TemplateProbe, head: str, prompt: str, said: str
) -> Format | None:
    """Return the format of the calls in a body, or None if it has no known kind of payload."""
    body = body.replace(IDS[1], IDS[0])  # strings of equal length
    kind = find_objects(body, calls) or find_labels(body, calls)
    if kind is not None:
        return _format(kind, body, head, prompt)
    if (python := find_python(body, calls)) is not None:
        return _format(python, body, head, prompt)
    if (bare := find_unquoted(body, calls)) is not None:
        return _format(bare, body, head, prompt)
    typed = probe.answer(calls=[(NAMES[0], TYPED)])
    found = find_tags(body, calls, typed[len(_head(typed, said, prompt)) :])
    if found is None:
        return None
    tags, spans = found
    kind = Payloads("tags", tuple(CallSpan(start, end, ("", "", "")) for start, end in spans))
    format = _format(kind, body, head, prompt)
    if format is None:
        return None
    # The start marker of a call may contain the tag of the name, and the end marker the end tag of a call.
    inner, _, end = format.frame
    mark, close = format.marks[0]
    if end.strip() == close:
        close = ""
    tags = replace(tags, name=(inner, tags.name[1]), end=end)
    marks = [(mark, close)]
    if inner.strip() != mark and "<" in inner:
        marks.append((inner.strip(), close))
    return replace(format, tags=tags, marks=tuple(marks), frame=("", "", ""))


# From payloads to a format.


def _format(kind: Payloads, body: str, head: str, prompt: str) -> Format | None:
    """Return the format of payloads, derived from the strings before, between and after them."""
    spans = kind.spans
    before, after = body[: spans[0].start], body[spans[-1].end :]
    between, group, opened = "", kind.group, ""
    names = NAMES[: len(spans)]
    if group is not None:
        begin, finish = "", ""
        opening, closing = before[: len(before) - len(group[0])], after[len(group[2]) :]
    elif len(spans) == 1:
        begin, opening, closing, finish = "", before, after, ""
    else:
        joint = body[spans[0].end : spans[1].start]
        if not before.strip() and joint.strip() and head.endswith(joint.strip()):
            before = opened = joint.strip()  # the prompt ends with the start marker of a call
            opened = opened if prompt.endswith(opened) else ""
        closing = common_start(after, joint)
        opening = common_end(before, joint[len(closing) :])
        between = joint[len(closing) : len(joint) - len(opening)]
        begin, finish = before[: len(before) - len(opening)], after[len(closing) :]
        if not (opening.strip() or closing.strip()):  # several objects in one pair of markers
            group, opening, closing = ("", joint, ""), begin + opening, closing + finish
            begin = finish = between = ""
        between = between + opening[: len(opening) - len(opening.lstrip())]
        if not finish.strip():  # no whitespace is needed after the last call
            between = closing[len(closing.rstrip()) :] + between
            closing = closing.rstrip()
    lead, opening, begin = _lead(begin, opening, names)
    if lead is not None:
        between = between.partition(lead.partition("{name}")[0])[0]
    finish = _paired(finish, begin)
    inner, outer = ("", "") if kind.name != "tags" else (opening, closing)
    mark, padding = opening.strip(), opening[len(opening.rstrip()) :]
    close, gap = closing.strip(), closing[: len(closing) - len(closing.lstrip())]
    marks = marks_in(mark)
    if kind.name not in ("object", "keyed", "python") and marks and not _is_shared(marks[0][0], begin + closing):
        first = opening.index(marks[0][0]) + len(marks[0][0])
        mark, inner, padding = marks[0][0], opening[first:], ""
    marks = marks_in(close)
    if kind.name not in ("object", "keyed", "python") and marks and marks[-1].start() and mark != opening.strip():
        outer, close, gap = closing[: closing.rindex(marks[-1][0])], marks[-1][0], ""
    if not begin.strip() and not lead and len(marks_in(close)) > 1 + len(marks_in(outer)) + len(marks_in(inner)):
        close = marks_in(close)[0][0]
    if not mark and kind.name not in ("object", "keyed"):
        return None
    format = Format(
        "derived",
        ((mark, _close(close, mark, begin)),) if mark else (),
        section=(begin.strip(), finish.strip()),
        between=between,
        padding=(padding, gap),
        is_list=group is not None and group[0].startswith("["),
        group=group,
        is_bare=not mark,
        is_python=kind.name == "python",
        is_keyed=kind.name == "keyed",
        lead=lead or "",
        opened=opened,
        gaps=(begin[len(begin.rstrip()) :], finish[: len(finish) - len(finish.lstrip())]),
        frame=(inner, "", outer),
    )
    if kind.name in ("object", "keyed"):
        parts = [_numbered([span.parts[i] for span in spans]) for i in range(3)]
        loose = FENCES if kind.name == "object" and group is None else ()
        (name, arguments), frame = kind.keys, (parts[0], parts[1], parts[2])
        return replace(format, frame=frame, loose=loose, names=name, arguments=arguments)
    if kind.name in ("label", "bare"):
        texts = (_numbered([inner]), _numbered([span.parts[1] for span in spans]), outer)
        names_in = tuple(match[0] for text in texts for match in marks_in(text))
        is_bare = kind.name == "bare"
        label = Label(
            label_pattern(texts[0], texts[1]),
            *texts,
            marks=(*names_in, QUOTE) if is_bare else names_in,
            is_bare=is_bare,
        )
        return replace(format, label=label, frame=("", "", ""))
    return format


def _lead(begin: str, opening: str, names: tuple[str, ...]) -> tuple[str | None, str, str]:
    """Return the string with the tool's name before a call, such as a recipient, and both strings without it."""
    if names[0] not in begin + opening:
        return None, opening, begin
    text = begin + opening
    at = text.rindex(names[0])
    end = next((match.end() for match in marks_in(text[at:])), 0) + at
    return text[:end].strip().replace(names[0], "{name}"), text[end:], ""


def _is_shared(mark: str, text: str) -> bool:
    return mark in text


def _close(close: str, mark: str, begin: str) -> str:
    """Return the end marker of calls. Without a start marker there is none: the string is the end of the turn."""
    return "" if not mark else close


def _paired(finish: str, begin: str) -> str:
    """Return the end of all calls, with as many markers as their start. Further markers end the turn."""
    n = len(marks_in(begin))
    marks = marks_in(finish)
    if not begin.strip():
        return ""
    return finish[: marks[n - 1].end()] if 0 < n < len(marks) else finish


def _numbered(texts: list[str]) -> str:
    """Return the string common to all calls, with `{id}` for the id and `{n}` for the number."""
    plain = [text.replace(IDS[0], "{id}") for text in texts]
    if len(set(plain)) == 1 and len(plain) > 1:
        return plain[0]
    if len({re.sub(r"\d+", "{n}", text) for text in plain}) == 1 and len(plain) > 1:
        return re.sub(r"\d+", "{n}", plain[0])
    return plain[0]
