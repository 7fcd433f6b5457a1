"""Grammars that only allow valid calls, for required and strict tools."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from woolly.chat.tools.arguments import escape, python_call, tagged_call
from woolly.chat.tools.markers import marker_ids
from woolly.errors import RequestError
from woolly.grammar.json_schema import prepare_schema

if TYPE_CHECKING:
    from woolly.chat.reasoning import ReasoningFormat
    from woolly.chat.tools.format import Format
    from woolly.chat.tools.tool import Tool, ToolChoice
    from woolly.tokens import Tokenizer

MAX_CALLS = 16  # per answer, because a small model might never stop calling
MAX_SOURCE = 32 << 10  # maximum of the engine for Lark grammars
_MARK = re.compile(r"(\]<\]\w+\[>\[|<[^<>\s]+>|\[[A-Z_]+\]|\{n\}|\{id\})")
_LIST = ("[", ", ", "]")
_PLACES = {"{n}": "/[0-9]{1,4}/", "{id}": "/[a-zA-Z0-9]{9}/"}  # templates that check ids require nine characters


def call_grammar(
    choice: ToolChoice,
    format: Format,
    tokenizer: Tokenizer,
    *,
    marks: ReasoningFormat | None = None,
    is_open: bool = False,
    answer: Mapping[str, Any] | None = None,
    header: str = "",
) -> str:
    """Return a Lark grammar for an answer that follows `choice`, after optional reasoning if there are `marks`.

    If no call is required, the answer may be other text, or JSON of the schema `answer`. The parser of the answer must
    not use the format's loose markers, because the grammar does not support them.
    """
    grammar = _Grammar(tokenizer)
    calls = _calls(grammar, choice, format)
    head, end = grammar.around_answer(marks, header)
    if format.text_end:  # end of empty text
        grammar.rule("EMPTY", r"/\s*/")
        calls = grammar.rule("turn", f"({f'{head} ' if head else ''}{grammar.mark(format.text_end)} EMPTY)? {calls}")
    if choice.mode == "required":
        grammar.rule("reply", calls)
    elif answer is not None:
        grammar.rule("reply", f"{calls} | {head} answer {end}")
        grammar.rule("answer", f"%json {json.dumps(answer, default=dict)}")
    else:
        _free_reply(grammar, choice, format, calls, head)
    return grammar.finish(marks, is_open)


def answer_grammar(
    schema: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    marks: ReasoningFormat | None,
    is_open: bool = False,
    header: str = "",
) -> str:
    """Return a Lark grammar for JSON of a schema, with optional reasoning before it."""
    grammar = _Grammar(tokenizer)
    head, end = grammar.around_answer(marks, header)
    grammar.rule("reply", f"{head} answer {end}")
    grammar.rule("answer", f"%json {json.dumps(schema, default=dict)}")
    return grammar.finish(marks, is_open)


class _Grammar:
    """Collects the rules of a Lark grammar."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: list[str] = []

    def rule(self, name: str, body: str) -> str:
        self._rules.append(f"{name}: {body}")
        return name.partition("[")[0]

    def is_token(self, mark: str) -> bool:
        """Return True if a marker is a control token, which text cannot match."""
        return bool(marker_ids(self._tokenizer, [mark]))

    def mark(self, text: str) -> str:
        """Return an expression for a string with markers, as tokens or text. `{n}` matches a number, `{id}` an id.

        A number has at most four digits, because a small model might never end it.
        """
        items: list[str] = []
        plain = ""
        for piece in re.split(_MARK, text):
            if piece in _PLACES or self.is_token(piece):
                items += [json.dumps(plain)] if plain else []
                ids = marker_ids(self._tokenizer, [piece])
                items += [f"<[{token}]>" for token in ids] or [_PLACES[piece]]
                plain = ""
            else:
                plain += piece
        return " ".join([*items, json.dumps(plain)] if plain else items)

    def around_answer(self, marks: ReasoningFormat | None, header: str) -> tuple[str, str]:
        """Return expressions for the strings before and after the text of an answer.

        A header that is not a control token is optional, because models only write it after reasoning.
        """
        if marks is None or not marks.answer:
            return self.mark(header) if header else "", ""
        head = self.mark(marks.answer)
        is_optional = not (marks.has_channels or marks.answer.startswith("<|"))
        return (f"({head})?" if is_optional else head), f"({self.mark(marks.answer_end)})?" if marks.answer_end else ""

    def closing(self, mark: str) -> str:
        """Return an expression for the end marker of calls. It is empty for a stop token, which ends the answer."""
        return "" if marker_ids(self._tokenizer, [mark]) & self._tokenizer.stop_ids else self.mark(mark)

    def finish(self, marks: ReasoningFormat | None, is_open: bool) -> str:
        if marks is None:
            start = "reply"
        else:
            self.rule("SPACE", r"/\s+/")
            if self.is_token(marks.end):
                self.rule("ANYTHING", "/(?s:.+)/")
                thoughts = f"ANYTHING? {self.mark(marks.end)}"
            else:
                thoughts = self.rule("thoughts[lazy]", f"/(?s:.*){escape(marks.end)}/").partition("[")[0]
            again = f"{self.mark(marks.again)} " if marks.again else ""
            start = f"{thoughts} SPACE? {again}reply"
            if not is_open:
                start = f"reply | SPACE? {self.mark(marks.start)} {start}"
        source = "\n".join([f"start: {start}", *self._rules])
        if len(source) > MAX_SOURCE:
            raise RequestError(
                f"the tools and their JSON schemas make a grammar of {len(source)} characters, which is needed for "
                f"strict tools and for tool_choice; at most {MAX_SOURCE} are accepted: give fewer tools, or leave "
                'strict out and tool_choice at "auto"',
                field="tools",
                code="grammar",
                limit=MAX_SOURCE,
                names=(),
            )
        return source


def _calls(grammar: _Grammar, choice: ToolChoice, format: Format) -> str:
    """Add a rule for one or several calls with their markers, and return its name. `rest` follows the first marker."""
    objects = (_object(grammar, format, i, tool) for i, tool in enumerate(choice.callable))
    grammar.rule("object", " | ".join(objects))
    open_mark, close_mark = format.marks[0] if _is_marked(format) else ("", "")
    if format.tags is not None and format.tags.name[0].strip() == open_mark:
        open_mark = ""  # it contains the name
    before, after = (json.dumps(text) if open_mark and text else "" for text in format.padding)
    begin, separator, end = format.group or (_LIST if format.is_list else ("", "", ""))
    body = "object"
    if begin or separator:
        more = _more(grammar.mark(separator), "object", choice, format)
        body = f"{grammar.mark(begin)} object {more} {grammar.mark(end)}"
    grammar.rule("payload", f"{before} {body} {after} {grammar.closing(close_mark)}")
    lead = _lead(grammar, choice, format)
    grammar.rule("call", f"{lead} {grammar.mark(open_mark)} payload")
    more = "" if begin or separator else _more(grammar.mark(format.between), "call", choice, format)
    opening, closing = format.section
    if opening:
        grammar.rule("rest", f"call {more} {grammar.mark(format.gaps[1] + closing)}")
        return grammar.rule("calls", f"{grammar.mark(opening + format.gaps[0])} rest")
    grammar.rule("rest", f"payload {more}")
    opened = open_mark.removeprefix(format.opened)  # the prompt may already end with this marker
    first = f'" "? {lead}' if lead else ""
    return grammar.rule("calls", f"{first} {grammar.mark(opened)} rest")


def _lead(grammar: _Grammar, choice: ToolChoice, format: Format) -> str:
    """Return an expression for the header of a message to a tool, empty if the format has none."""
    if not format.lead:
        return ""
    before, _, after = format.lead.partition("{name}")
    names = " | ".join(json.dumps(tool.name) for tool in choice.callable)
    return f"{grammar.mark(before)} ({names}) {grammar.mark(after)}"


def _object(grammar: _Grammar, format: Format, i: int, tool: Tool) -> str:
    """Return an expression for a call of a tool, without markers."""
    if format.tags is not None:
        return tagged_call(format.tags, i, tool, grammar.rule, grammar.mark)
    if format.is_python:
        return python_call(i, tool, grammar.rule)
    schema = json.dumps(tool.schema)
    if fault := _fault(schema):
        raise RequestError(f"the arguments of the tool {tool.name!r}: {fault}", field="tools", code="grammar", names=())
    arguments = grammar.rule(f"arguments_{i}", f"%json {schema}")
    if format.label is not None:
        label = format.label
        return f"{grammar.mark(label.before + tool.name + label.after)} {arguments} {grammar.mark(label.end)}"
    if format.frame[1]:
        before, assign, after = format.frame
        if not _is_marked(format):
            return f"{_lexemes(before + tool.name + assign)} {arguments} {grammar.mark(after)}"
        return f"{grammar.mark(before + tool.name + assign)} {arguments} {grammar.mark(after)}"
    name = f"{json.dumps(format.names)}: {json.dumps(tool.name)}, {json.dumps(format.arguments)}: "
    number = """ "{\\"tool_call_id\\": \\"" /[0-9]{1,4}/ "\\", " """ if format.is_numbered else '"{"'
    return f'{number} {json.dumps(name)} {arguments} "}}"'


@lru_cache(256)
def _fault(schema: str) -> str | None:
    """Return the reason why a schema is not supported, or None. Errors of the complete grammar do not name the tool."""
    try:
        prepare_schema(schema)
    except RequestError as error:
        return str(error)
    return None


def _lexemes(text: str) -> str:
    """Return an expression for JSON whose lexemes are those of %json, because the answer may be other JSON."""
    return " ".join(json.dumps(piece) for piece in re.findall(r'"(?:[^"\\]|\\.)*"|\s+|[^\s"]', text))


def _is_marked(format: Format) -> bool:
    """Return True if calls are written with markers. Some formats only accept markers."""
    return bool(format.marks) and not format.is_bare


def _more(separator: str, rule: str, choice: ToolChoice, format: Format) -> str:
    """Return an expression for repetitions of a rule, empty if repetitions are not allowed."""
    if not choice.is_parallel or format.is_single:
        return ""
    return f"({separator} {rule}){{0,{MAX_CALLS - 1}}}"


def _free_reply(grammar: _Grammar, choice: ToolChoice, format: Format, calls: str, head: str) -> None:
    """Add a rule for text, calls, or text followed by calls. The parser finds no call in the text.

    An answer that begins with `head` is text without calls.
    """
    opening = format.section[0] or format.marks[0][0]
    plain = [mark for mark, _ in (*format.marks, format.section) if mark and not grammar.is_token(mark)]
    text = r"/(?s:\s*[^\s{\[].*)/"
    if plain:
        text += f" & ~/(?s:.*({'|'.join(map(escape, plain))}).*)/"
    grammar.rule("TEXT", text)
    if head or not _is_marked(format):
        grammar.rule("reply", f"{head} TEXT | {calls}")
    elif grammar.is_token(opening):
        grammar.rule("reply", f"TEXT | TEXT? {calls}")
    else:
        lead = grammar.rule("lead[lazy]", rf"/(?s:\s*([^\s{{\[].*)?){escape(opening)}/")
        grammar.rule("reply", f"TEXT | {lead} rest")
