"""Test cases of llama.cpp's chat parsers, read from the C++ source of tests/test-chat.cpp in a checkout.

The reader knows as much C++ as these cases use: literals, lists, constants, helper functions that build messages, and
the chains `tester.test(answer).tools(...).expect(...).run()`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TOKENS = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|^\#[^\n]*$)
    |(?P<raw>u?8?R"(?P<delimiter>[^\s()\\]*)\((?P<text>.*?)\)(?P=delimiter)")
    |(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<number>\d[\w.]*)|(?P<name>[A-Za-z_][\w:]*(?<!:))|(?P<sign>.)""",
    re.S | re.X | re.M,
)


class UnreadableError(Exception):
    """An expression that the reader does not know."""


@dataclass(frozen=True)
class Case:
    """Answer of a model with a template, and the message that llama.cpp reads from it."""

    template: str  # below the checkout
    line: int
    answer: str
    options: dict[str, Any]  # arguments of the methods of the builder, by name

    @property
    def name(self) -> str:
        """Template and line, as the id of a test."""
        return f"{Path(self.template).stem}:{self.line}"


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass
class Reader:
    """Walks over the tokens of a source. `cases` are what it found, `n_unread` what it could not read."""

    source: str
    cases: list[Case] = field(default_factory=list)
    n_unread: int = 0

    def __post_init__(self) -> None:
        self._tokens = list(_tokens(self.source))
        self._functions = dict(self._found_functions())
        self._at = 0

    def read(self) -> list[Case]:
        """Return all cases of the source."""
        names: dict[str, Any] = {"true": True, "false": False}
        self._walk(0, len(self._tokens), names, is_top=True)
        return self.cases

    def _found_functions(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        """Yield functions that take a template's path: name, name of the parameter, and range of the body."""
        for i in range(len(self._tokens)):
            if self._texts(i, 8)[2:] == ["(", "const", "std::string", "&", "template_path", ","]:
                begin = next(j for j in range(i, len(self._tokens)) if self._tokens[j].text == "{")
                yield self._tokens[i + 1].text, ("template_path", begin + 1, self._closing(begin))

    def _texts(self, i: int, n: int) -> list[str]:
        return [token.text for token in self._tokens[i : i + n]]

    def _closing(self, i: int) -> int:
        pairs = {"(": ")", "{": "}", "[": "]"}
        begin, end, depth = self._tokens[i].text, pairs[self._tokens[i].text], 0
        for j in range(i, len(self._tokens)):
            if self._tokens[j].kind == "sign":
                depth += (self._tokens[j].text == begin) - (self._tokens[j].text == end)
                if not depth:
                    return j
        raise UnreadableError(f"{begin} at line {self._tokens[i].line} is not closed")

    def _walk(self, i: int, end: int, names: dict[str, Any], *, is_top: bool = False) -> None:
        bodies = {first: last for _, first, last in self._functions.values()} if is_top else {}
        while i < end:
            if i in bodies:
                i = bodies[i]
            step = self._statement(i, names)
            i = i + 1 if step is None else step

    def _statement(self, i: int, names: dict[str, Any]) -> int | None:
        """Run the statement at a token, and return the token behind it; None: there is none that matters."""
        a, b, c, d = (self._texts(i, 4) + [""] * 4)[:4]
        if b == "." and c == "test" and d == "(":
            return self._case(i, names)
        if a == "for" and b == "(":
            return self._loop(i, names)
        if a in self._functions and b == "(" and self._tokens[i - 1].text != "void":
            name, first, last = self._functions[a]
            try:
                path = self._read(i + 2, names)
            except UnreadableError:
                return None
            self._walk(first, last, {**names, name: path})
            return last if first > i else i + 3
        try:
            if a == "common_chat_msg" and c == ";":
                names[b] = {"role": "assistant", "content": "", "reasoning": "", "calls": []}
            elif b == "{" and self._tokens[i - 1].text in ("common_chat_tool", "common_chat_msg"):
                given = self._read(i + 1, names)
                is_tool = self._tokens[i - 1].text == "common_chat_tool"
                names[a] = tuple(given) if is_tool else _message(given[1], role=given[0])
                return self._at
            elif b == "{" and self._tokens[i - 1].text == ">":
                names[a] = self._read(i + 1, names)
                return self._at
            elif b == "." and d == "=" and isinstance(names.get(a), dict):
                names[a][c] = self._read(i + 4, names)
                return self._at
            elif b == "=" and self._tokens[i].kind == "name":
                names[a] = self._read(i + 2, names)
                return self._at
        except (UnreadableError, IndexError, TypeError, ValueError):
            return None
        return None

    def _loop(self, i: int, names: dict[str, Any]) -> int | None:
        end = self._closing(i + 1)
        colon = next((j for j in range(i, end) if self._texts(j, 2) == [":", "{"]), None)
        if colon is None:
            return None
        try:
            values = self._read(colon + 1, names)
        except UnreadableError:
            return None
        last = self._closing(end + 1)
        for value in values:
            self._walk(end + 2, last, {**names, self._tokens[colon - 1].text: value})
        return last

    def _case(self, i: int, names: dict[str, Any]) -> int | None:
        """Read a chain of calls from `tester.test(` to `.run()`."""
        template = names.get(self._tokens[i].text)
        line = self._tokens[i].line
        options: dict[str, Any] = {}
        j, answer, fault = i + 1, None, not isinstance(template, str)
        while self._texts(j, 1) == ["."]:
            method, end = self._tokens[j + 1].text, self._closing(j + 2)
            try:
                value = self._read(j + 3, names) if end > j + 3 else True
            except (UnreadableError, TypeError, ValueError, IndexError):
                fault = True
                value = None
            if method == "test":
                answer = value
            else:
                options[method] = value
            j = end + 1
        if fault:
            self.n_unread += 1
        else:
            self.cases.append(Case(template, line, answer, options))
        return j

    # Expressions.

    def _read(self, i: int, names: dict[str, Any]) -> Any:
        """Return the value of an expression; `_at` is the token behind it."""
        value = self._term(i, names)
        while True:
            token = self._tokens[self._at]
            if token.text == "+" and token.kind == "sign":
                value += self._term(self._at + 1, names)
            elif isinstance(value, str) and token.kind in ("string", "raw"):
                value += self._term(self._at, names)
            else:
                return value

    def _term(self, i: int, names: dict[str, Any]) -> Any:
        token = self._tokens[i]
        self._at = i + 1
        if token.kind in ("string", "raw"):
            return token.text
        if token.kind == "number":
            return ast.literal_eval(token.text)
        if token.text == "{":
            return self._list(i, names)
        following = self._tokens[self._at].text
        if token.kind != "name":
            raise UnreadableError(token.text)
        if following in ("(", "{"):
            return _called(token.text, self._list(self._at, names))
        if token.text in names:
            return names[token.text]
        if token.text.isupper():
            return token.text
        raise UnreadableError(token.text)

    def _list(self, i: int, names: dict[str, Any]) -> list[Any]:
        end, values, at = self._closing(i), [], i + 1
        while at < end:
            values.append(self._read(at, names))
            at = self._at + 1
        self._at = end + 1
        return values


def _tokens(source: str) -> Iterator[_Token]:
    line = 1
    for match in _TOKENS.finditer(source):
        kind = match.lastgroup or ""
        kind = "raw" if match["raw"] is not None else kind
        text = match[0]
        if kind == "raw":
            yield _Token("raw", match["text"], line)
        elif kind == "string":
            yield _Token("string", _unescaped(text[1:-1]), line)
        elif kind != "space":
            yield _Token(kind, text, line)
        line += text.count("\n")


def _unescaped(text: str) -> str:
    """Return the text of a C++ literal, whose \\x are bytes of UTF-8."""
    simple = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f"}

    def replaced(match: re.Match[str]) -> bytes:
        code = match[0][1:]
        if code[0] == "x":
            return bytes([int(code[1:], 16)])
        return (chr(int(code[1:], 16)) if code[0] in "uU" and len(code) > 1 else simple.get(code, code)).encode()

    out, at = b"", 0
    for match in re.finditer(r"\\(?:x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", text, re.S):
        out += text[at : match.start()].encode() + replaced(match)
        at = match.end()
    return (out + text[at:].encode()).decode()


def _message(content: str, reasoning: str = "", calls: Any = (), role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": content, "reasoning": reasoning, "calls": [tuple(call) for call in calls]}


def _called(name: str, given: list[Any]) -> Any:
    """Return the result of a helper function of the source."""
    if name == "peg_tester":
        return given[0]
    if name in ("std::string", "std::vector"):
        return given[0] if name == "std::string" else given
    if name == "simple_assist_msg":
        content, reasoning, tool, arguments, id = [*given, *[""] * (5 - len(given))]
        return _message(content, reasoning, [(tool, arguments, id)] if tool or id else ())
    if name in ("message_with_tool_calls", "message_with_tool_calls_and_reasoning"):
        return _message("", given[2] if len(given) > 2 else "", [(given[0], given[1], "")])
    if name == "message_with_reasoning_content_and_multiple_tool_calls":
        return _message(given[1], given[0], [(tool, arguments, "") for tool, arguments in given[2]])
    if name == "message_with_content_and_tool_call":
        return _message(given[0], "", [(given[1], given[2], "")])
    if name == "message_with_reasoning_and_tool_call":
        return _message("", given[0], [(given[1], given[2], "")])
    raise UnreadableError(name)
