"""Questions with known answers, and the check of answers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from woolly.errors import RequestError

Match = Literal["exact", "regex", "number", "json"]
_MATCHES = ("exact", "regex", "number", "json")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class ChoiceRow:
    """Multiple-choice question, answered by the likeliest choice."""

    key: str  # digest that identifies the row when a run is resumed
    prompt: str
    choices: tuple[str, ...]  # continuations of the prompt
    lengths: tuple[int, ...]  # lengths of the choices in characters, without the leading space
    answer: int


@dataclass(frozen=True)
class PromptRow:
    """Prompt with a generated answer."""

    key: str
    prompt: str
    answer: Any
    match: Match


Row = ChoiceRow | PromptRow


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a JSONL file. RequestError names an invalid line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "it is not UTF-8"
        raise RequestError(f"{path} cannot be read ({reason}); expected a file of JSON lines") from None
    return rows_of(text, str(path))


def rows_of(text: str, name: str) -> list[Row]:
    """Parse rows in JSON lines. RequestError names the source and the invalid line."""
    lines = text.split("\n")  # not splitlines: JSON strings may contain U+2028 or U+0085
    rows = [_row(line, f"{name}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise RequestError(f"{name} has no rows; expected JSON lines")
    return rows


def _row(line: str, where: str) -> Row:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(f"{where} is not a JSON object")
    key = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:24]
    if "tests" in data:
        raise RequestError(f"{where} has tests; Woolly does not run code written by a model")
    if "answer" not in data:
        raise RequestError(
            f'{where} has no answer; expected a row such as {{"prompt": "2 + 3 =", "answer": 5, "match": "number"}}'
        )
    if "choices" in data:
        return _choices(data, key, where)
    if not isinstance(data.get("prompt"), str):
        raise RequestError(f"{where} has neither question and choices nor a prompt")
    match = data.get("match", "exact")
    if match not in _MATCHES:
        raise RequestError(f"{where}: match is {match!r}; expected one of {', '.join(_MATCHES)}")
    answer = data["answer"]
    if match == "regex":
        try:
            re.compile(str(answer))
        except re.error as error:
            raise RequestError(f"{where}: the answer is not a regular expression: {error}") from None
    if match == "number" and _number(str(answer)) is None:
        raise RequestError(f"{where}: the answer is {answer!r}; expected a number")
    return PromptRow(key, data["prompt"], answer, match)


def _choices(data: dict[str, Any], key: str, where: str) -> ChoiceRow:
    choices, answer = data["choices"], data["answer"]
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c for c in choices):
        raise RequestError(f"{where}: choices must be two or more strings")
    if isinstance(answer, str) and answer in choices:
        index = choices.index(answer)
    elif isinstance(answer, str) and len(answer) == 1 and 0 <= ord(answer.upper()) - ord("A") < len(choices):
        index = ord(answer.upper()) - ord("A")
    elif isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        index = answer
    else:
        raise RequestError(f"{where}: the answer is {answer!r}; expected a choice, its letter or its number from 0")
    if isinstance(data.get("prompt"), str):
        prompt = data["prompt"]
    elif isinstance(data.get("question"), str):
        prompt = f"Question: {data['question']}\nAnswer:"
    else:
        raise RequestError(f"{where} has choices, but neither a question nor a prompt")
    continued = tuple(c if c[0].isspace() else " " + c for c in choices)
    return ChoiceRow(key, prompt, continued, tuple(len(c) for c in choices), index)


def judge(row: PromptRow, text: str) -> bool:
    """Return True if a generated answer is correct."""
    if row.match == "regex":
        return re.search(str(row.answer), text) is not None
    if row.match == "number":
        found, expected = _number(text), _number(str(row.answer))
        return found is not None and expected is not None and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    if row.match == "json":
        return bool(_json(text) == row.answer)
    return text.strip() == str(row.answer).strip()


def _number(text: str) -> float | None:
    """Return the last number of a text, which is usually the answer."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _json(text: str) -> Any:
    """Return the first JSON object or list in a text, or the complete text parsed as JSON.

    Invalid JSON is returned as Ellipsis, which equals no answer.
    """
    decoder = json.JSONDecoder()
    for at, character in enumerate(text):
        if character in "{[":
            try:
                return decoder.raw_decode(text, at)[0]
            except ValueError:
                continue
    try:
        return json.loads(text.strip())
    except ValueError:
        return ...
