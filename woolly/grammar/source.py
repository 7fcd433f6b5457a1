"""Translation of all kinds of grammar sources to llguidance's format."""

from __future__ import annotations

import json
import re
from typing import Any

from woolly.errors import RequestError
from woolly.grammar.gbnf.lark import gbnf_to_lark
from woolly.grammar.json_schema import prepare_schema, prepare_schema_value
from woolly.grammar.schema.constants import MAX_LITERAL

# While compiling, a chain of rules needs up to 1.5 KiB of stack per character. Rules with nested groups take time that
# grows with the square of their length: 1.5 s for 32 KiB.
MAX_LARK = 32 << 10
MAX_SOURCE = 128 << 10  # for other kinds except JSON schemas

KINDS = {  # names of the kinds in messages
    "json_schema": "the JSON schema",
    "json_object": "JSON mode",
    "regex": "the regex",
    "choice": "the choice",
    "lark": "the Lark grammar",
    "grammar": "the GBNF grammar",
}


def read_source(kind: str, source: str) -> str:
    """Return the grammar for llguidance. Raise RequestError for errors that are visible without compiling."""
    from llguidance import LLMatcher

    if kind == "json_object":
        return _grammars([prepare_schema('{"type": "object"}')])
    if kind == "json_schema":
        return _grammars([prepare_schema(source)])
    if len(source) > (most := MAX_LARK if kind == "lark" else MAX_SOURCE):
        raise RequestError(f"{KINDS[kind]} has {len(source)} characters; the maximum is {most}")
    if not source or (kind != "regex" and not source.strip()):
        raise RequestError(f"{KINDS[kind]} is empty; omit it to allow any text")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{KINDS[kind]} has a lone surrogate; use complete Unicode characters") from None
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "choice":
        return _grammars([_choice_to_lark(source)])
    if kind == "lark":
        return _grammars(_prepare_lark(source))
    return _grammars([gbnf_to_lark(source)])


def _grammars(entries: list[str | dict[str, Any]]) -> str:
    """Return grammars for llguidance. The first one refers to the others by their numbers. A text is Lark."""
    grammars = [{"lark_grammar": entry} if isinstance(entry, str) else entry for entry in entries]
    named = [{"name": f"json_{i}", **grammar} for i, grammar in enumerate(grammars[1:])]
    return json.dumps({"grammars": [grammars[0], *named]})


def _choice_to_lark(source: str) -> str:
    try:
        choices = json.loads(source)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("the choice must be a list of one or more strings")
    if (longest := max(map(len, choices))) > MAX_LITERAL:
        raise RequestError(f"the choice has a string of {longest} characters; the maximum is {MAX_LITERAL}")
    # A single lexeme, so that a choice is not hidden by another choice that begins with it.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))


def _prepare_lark(source: str) -> list[str | dict[str, Any]]:
    """Return the Lark source and the grammars of its JSON schemas. Reject unsupported rule attributes."""
    for header in re.finditer(r"^[ \t]*[?!]?[\w-]+[ \t]*\[([^\]\n]*)\][ \t]*:", source, re.MULTILINE):
        for name in ("temperature", "stop"):
            if re.search(rf"(^|,)\s*{name}\s*=", header[1]):
                hint = "" if name == "temperature" else "; use suffix or lazy"
                raise RequestError(
                    f"the Lark grammar has a rule with the attribute {name}, which is not supported{hint}"
                )
    parts, end = [], 0
    grammars: list[dict[str, Any]] = []
    for match in re.finditer(r"%json\s*(?=\{)", source):
        if match.start() < end:
            continue
        try:
            schema, stop = json.JSONDecoder().raw_decode(source, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance reports the location of the error
        grammar = prepare_schema_value(schema)
        number = grammars.index(grammar) if grammar in grammars else len(grammars)
        grammars += [grammar] if number == len(grammars) else []
        parts += [source[end : match.start()], f"@json_{number} "]
        end = stop
    return ["".join(parts) + source[end:], *grammars]


def explain(error: str) -> str:
    """Return llguidance's error as one clause. The original has many lines and may quote the complete grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<")]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (reasons or lines or ["no reason is known"])[0]
    if reason.startswith("NoExtension"):
        return "no token of the vocabulary can come next"
    if reason.startswith("panic: assertion failed: grammar.symbols.len()"):
        return "it is too large"
    if reason.startswith("panic: "):
        return f"llguidance fails on it ({reason[7:100]})"
    if reason.startswith("recursion limit exceeded"):
        return "it is nested too deeply; at most 128 levels are accepted"
    return reason[:300].rstrip(".:;")
