"""Grammars that let nothing but sound calls out: for tools that must be called, and for those that are strict."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from woolly.errors import RequestError
from woolly.serving.reasoning import ReasoningMarks
from woolly.serving.tools.format import Format
from woolly.serving.tools.marks import mark_ids
from woolly.serving.tools.tool import ToolChoice
from woolly.text import Tokenizer

__all__ = ["answer_grammar", "call_grammar"]

MAX_CALLS = 16  # in one answer: a small model that must call would not end otherwise
MAX_SOURCE = 32 << 10  # of a Lark grammar, as the engine has it


def call_grammar(
    choice: ToolChoice,
    format: Format,
    tokenizer: Tokenizer,
    *,
    marks: ReasoningMarks | None = None,
    is_open: bool = False,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """Lark for an answer that keeps to `choice`. Reasoning may come first where the model has `marks` for it.

    Where no call is required, other text may come, or JSON of the schema `answer`. The parser of such an answer must
    not know the format's loose marks, for the grammar does not.
    """
    grammar = _Grammar(tokenizer)
    for i, tool in enumerate(choice.callable):
        grammar.rule(f"arguments_{i}", f"%json {json.dumps(tool.schema)}")
    calls = _calls(grammar, choice, format)
    if choice.mode == "required":
        grammar.rule("reply", calls)
    elif answer is not None:
        grammar.rule("reply", f"{calls} | answer")
        grammar.rule("answer", f"%json {json.dumps(answer)}")
    else:
        _free_reply(grammar, choice, format, calls)
    return grammar.finish(marks, is_open)


def answer_grammar(
    schema: Mapping[str, Any], tokenizer: Tokenizer, *, marks: ReasoningMarks, is_open: bool = False
) -> str:
    """Lark for JSON of a schema, behind whatever the model thinks."""
    grammar = _Grammar(tokenizer)
    grammar.rule("reply", f"%json {json.dumps(schema)}")
    return grammar.finish(marks, is_open)


class _Grammar:
    """Rules of a Lark source as they are put together."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: list[str] = []

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name.partition("[")[0]

    def is_token(self, mark: str) -> bool:
        """Whether a mark is a control token, which no text can match."""
        return bool(mark_ids(self._tokenizer, [mark]))

    def mark(self, mark: str) -> str:
        """What matches a mark, as a token or as text."""
        return next((f"<[{token}]>" for token in mark_ids(self._tokenizer, [mark])), json.dumps(mark))

    def finish(self, marks: ReasoningMarks | None, is_open: bool) -> str:
        if marks is None:
            start = "reply"
        else:
            self.rule("SPACE", r"/\s+/")
            if self.is_token(marks.end):
                self.rule("ANYTHING", "/(?s:.+)/")
                thoughts = f"ANYTHING? {self.mark(marks.end)}"
            else:
                thoughts = self.rule("thoughts[lazy]", f"/(?s:.*){_escaped(marks.end)}/").partition("[")[0]
            start = f"{thoughts} SPACE? reply"
            if not is_open:
                start = f"reply | SPACE? {self.mark(marks.start)} {start}"
        source = "\n".join([f"start: {start}", *self._rules])
        if len(source) > MAX_SOURCE:
            raise RequestError(
                f"the tools and their JSON schemas make a grammar of {len(source)} characters, which is needed for "
                f"strict tools and for tool_choice; at most {MAX_SOURCE} are accepted: give fewer tools, or leave "
                'strict out and tool_choice at "auto"'
            )
        return source


def _calls(grammar: _Grammar, choice: ToolChoice, format: Format) -> str:
    """A rule for one call or several, marks and all; `payload` is what stands behind a mark."""
    has_mark = _is_marked(format)
    open_mark, close_mark = format.marks[0] if has_mark else ("", "")
    opened = f"{grammar.mark(open_mark)} " if open_mark else ""
    if format.is_named:
        separator = grammar.mark("[ARGS]")
        heads = [f"{json.dumps(tool.name)} {separator}" for tool in choice.callable]
        grammar.rule("object", " | ".join(f"{head} arguments_{i}" for i, head in enumerate(heads)))
    else:
        key = json.dumps(format.arguments)
        heads = [json.dumps(f'{{"name": {json.dumps(tool.name)}, {key}: ') for tool in choice.callable]
        grammar.rule("object", " | ".join(f'{head} arguments_{i} "}}"' for i, head in enumerate(heads)))
    if format.is_list:
        grammar.rule("payload", f'"[" object {_more(", ", "object", choice, format)} "]"')
        return grammar.rule("calls", f"{opened}payload")
    grammar.rule("payload", f'"\\n" object "\\n" {grammar.mark(close_mark)}' if close_mark else "object")
    grammar.rule("call", f"{opened}payload")
    return grammar.rule("calls", f"call {_more(_between(format), 'call', choice, format)}")


def _is_marked(format: Format) -> bool:
    """Whether calls are written with marks; some formats only understand them."""
    return bool(format.marks) and not format.is_bare


def _between(format: Format) -> str:
    return "" if format.is_named else "\n"


def _more(separator: str, rule: str, choice: ToolChoice, format: Format) -> str:
    """Further ones of a rule, where there may be any."""
    if not choice.is_parallel or format.is_single:
        return ""
    return f"({json.dumps(separator) if separator else ''} {rule}){{0,{MAX_CALLS - 1}}}"


def _free_reply(grammar: _Grammar, choice: ToolChoice, format: Format, calls: str) -> None:
    """Text, calls, or text and then calls; the text holds nothing that would be taken for a call."""
    plain = [mark for mark, _ in format.marks if not grammar.is_token(mark)]
    text = r"/(?s:\s*[^\s{\[].*)/"
    if plain:
        text += f" & ~/(?s:.*({'|'.join(map(_escaped, plain))}).*)/"
    grammar.rule("TEXT", text)
    if not _is_marked(format):
        grammar.rule("reply", f"TEXT | {calls}")
    elif grammar.is_token(format.marks[0][0]):
        grammar.rule("reply", f"TEXT | TEXT? {calls}")
    else:
        lead = grammar.rule("lead[lazy]", rf"/(?s:\s*([^\s{{\[].*)?){_escaped(format.marks[0][0])}/")
        more = "" if format.is_list else _more(_between(format), "call", choice, format)
        grammar.rule("reply", f"TEXT | {lead} payload {more}")


def _escaped(mark: str) -> str:
    return re.sub(r"([^\w\s<>])", r"\\\1", mark)
