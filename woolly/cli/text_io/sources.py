"""Sources of texts: argument, standard input, file of lines, or JSONL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from woolly.cli.parse.options import read_text
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import plural
from woolly.cli.terminal.progress import print_status
from woolly.errors import RequestError


def read_texts(option: str, path: Path | None, key: str) -> list[str]:
    """Return one text per line of a file, or the text under `key` of each object of a .jsonl file.

    With `path` None, read standard input. Only a newline ends a line, as in `wc -l`. Lines without text are skipped and
    counted on standard error, because most models do not accept empty texts.
    """
    if path is None:
        try:
            content = sys.stdin.buffer.read().decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"standard input is not UTF-8 (byte {error.start})") from None
    else:
        content = read_text(option, path)
    lines = [line.removesuffix("\r") for line in content.removesuffix("\n").split("\n")] if content else []
    n_empty = sum(not line.strip() for line in lines)
    if n_empty:
        place = path or "standard input"
        print_status(f"woolly: {place} has {plural(n_empty, 'line')} without a text: an index counts the others")
    if path is None or path.suffix.lower() not in (".jsonl", ".ndjson"):
        return [line for line in lines if line.strip()]
    return [_text(path, number, line, key) for number, line in enumerate(lines, 1) if line.strip()]


def _text(path: Path, number: int, line: str, key: str) -> str:
    try:
        value: Any = json.loads(line)
    except ValueError:
        raise RequestError(f"{path}: line {number} is not valid JSON; expected one object or string per line") from None
    text = value.get(key) if isinstance(value, dict) else value
    if not isinstance(text, str):
        keys = ", ".join(value) if isinstance(value, dict) else type(value).__name__
        raise UsageError(f"{path}: line {number} has no text under {key!r} (it has {keys}); set the key with --key")
    return text
