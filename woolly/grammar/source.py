"""Translate grammar sources of all kinds to llguidance's form."""

from __future__ import annotations

import json
import re

from woolly.errors import RequestError
from woolly.grammar.gbnf.lark import gbnf_to_lark
from woolly.grammar.json_schema import MAX_LITERAL, prepare_schema, prepare_schema_value

# A chain of rules costs up to 1.5 KiB of stack per character while it is compiled, and rules of nested groups take
# time that grows with the square of their length: 32 KiB of nothing else take 1.5 s.
MAX_LARK = 32 << 10
MAX_SOURCE = 128 << 10  # of the others, but JSON schemas

KINDS = {  # and what messages call them
    "json_schema": "the JSON schema",
    "json_object": "JSON mode",
    "regex": "the regex",
    "choice": "the choice",
    "lark": "the Lark grammar",
    "grammar": "the GBNF grammar",
}


def read_source(kind: str, source: str) -> str:
    """Return the grammar for llguidance; RequestError for faults that are visible without compiling."""
    from llguidance import LLMatcher

    if kind == "json_object":
        return LLMatcher.grammar_from_json_schema(prepare_schema('{"type": "object"}'))
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(prepare_schema(source))
    if len(source) > (most := MAX_LARK if kind == "lark" else MAX_SOURCE):
        raise RequestError(f"{KINDS[kind]} has {len(source)} characters; at most {most} are accepted")
    if not source or (kind != "regex" and not source.strip()):
        raise RequestError(f"{KINDS[kind]} is empty; leave it out if any text may come")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{KINDS[kind]} holds a lone surrogate; only whole Unicode characters can be used") from None
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "choice":
        return LLMatcher.grammar_from_lark(_choice_to_lark(source))
    if kind == "lark":
        return LLMatcher.grammar_from_lark(_prepare_lark(source))
    return LLMatcher.grammar_from_lark(gbnf_to_lark(source))


def _choice_to_lark(source: str) -> str:
    try:
        choices = json.loads(source)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("the choice must be a list of one or more strings")
    if (longest := max(map(len, choices))) > MAX_LITERAL:
        raise RequestError(f"the choice has a string of {longest} characters; at most {MAX_LITERAL} can be kept")
    # One lexeme, so that a choice that begins another does not hide it.
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in dict.fromkeys(choices))


def _prepare_lark(source: str) -> str:
    """Return the Lark source with its JSON schemas prepared; reject unused rule attributes."""
    for header in re.finditer(r"^[ \t]*[?!]?[\w-]+[ \t]*\[([^\]\n]*)\][ \t]*:", source, re.MULTILINE):
        for name in ("temperature", "stop"):
            if re.search(rf"(^|,)\s*{name}\s*=", header[1]):
                hint = "" if name == "temperature" else "; use suffix or lazy"
                raise RequestError(f"the Lark grammar gives a rule the attribute {name}, which is not supported{hint}")
    parts, end = [], 0
    for match in re.finditer(r"%json\s*(?=\{)", source):
        if match.start() < end:
            continue
        try:
            schema, stop = json.JSONDecoder().raw_decode(source, match.end())
        except (ValueError, RecursionError):
            continue  # llguidance reports where it is wrong
        parts += [source[end : match.end()], json.dumps(prepare_schema_value(schema))]
        end = stop
    return "".join(parts) + source[end:]


def explain(error: str) -> str:
    """Return llguidance's error as one clause: the original has many lines and may quote the complete grammar."""
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("<")]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    reason = (reasons or lines or ["no reason is known"])[0]
    if reason.startswith("NoExtension"):
        return "no token of the vocabulary can come next"
    if reason.startswith("panic: assertion failed: grammar.symbols.len()"):
        return "it is too large"
    if reason.startswith("panic: "):
        return f"llguidance fails on it ({reason[7:100]})"
    if match := re.fullmatch(r"Unknown format: (.*)", reason):
        return f"format {match[1]!r} is not one that can be kept; remove it, or say it with 'pattern'"
    if match := re.fullmatch(r"Unimplemented keys: \[(.*)\]", reason):
        return f"the keyword {match[1]} is not supported"
    if reason.startswith("oneOf constraints are not supported"):
        return "oneOf is supported only if its options plainly exclude each other; use anyOf"
    if match := re.match(r"Resource '(.*)' is not present in a registry", reason):
        return f"it refers to {match[1]!r}, which is another document; only references within the schema are followed"
    if reason.startswith("recursion limit exceeded"):
        return "it is nested too deeply; at most 128 levels are accepted"
    return reason[:300].rstrip(".:;")
