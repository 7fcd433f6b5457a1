"""Comparison of model names: spelling variants, short forms and similar names.

Names are equal if they differ only in case and separators: `ministral-3:8b` and `Ministral3-8B`. A short form leaves
out only the size, the weight type or a suffix such as `-instruct`: `qwen2.5-coder-0.5b` for
`qwen2.5-coder-0.5b-instruct-q4_k_m.gguf`, but not `qwen2.5` for `qwen2.5-coder`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_FILE_SUFFIX = re.compile(r"\.(?:gguf|bin)$")
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[-_.:@/]+(?=\d)")
_SEPARATOR = re.compile(r"[-_:@/]+|(?<!\d)\.|\.(?!\d)")
_BREAK = re.compile(r"[-:@/]+|(?<!\d)\.|\.(?!\d)")  # `_` belongs to weight types: q4_k_m

# Parts of a name that a short form may leave out.
_DETAIL = re.compile(
    r"\d+(\.\d+)?[bmt]|[ae]\d+(\.\d+)?b|\d+x\d+(\.\d+)?b"  # sizes: 30b, a3b, e4b, 8x7b
    r"|instruct|it|chat|text|hf|qat|latest|preview"
    r"|v\d+(\.\d+)*|\d{4}|\d{6}|\d{8}"  # versions and dates: v0.3, 2507
    r"|ud|i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|fp?16|fp?32"
)


def normalize_name(name: str) -> str:
    """Return a name without case, separators and file suffix. Numbers stay apart: `gemma-3-1b` is `gemma3.1b`."""
    return _SEPARATOR.sub("", _BETWEEN_DIGITS.sub(".", _FILE_SUFFIX.sub("", name.lower())))


def without_owner(name: str) -> str:
    """Return a name without the organization and `-GGUF` of the hub: `org/Name-GGUF:Q4_0` is `Name:Q4_0`."""
    return re.sub(r"-gguf(?=$|:)", "", name.rpartition("/")[2], flags=re.IGNORECASE)


def is_short_form(short: str, name: str) -> bool:
    """True if `short` is `name` in another spelling, or without owner, size, weight type or a suffix."""
    wanted = normalize_name(without_owner(short))
    parts = [part for part in _BREAK.split(_FILE_SUFFIX.sub("", without_owner(name).lower())) if part]
    for i in range(len(parts), 0, -1):
        if normalize_name("-".join(parts[:i])) == wanted:
            return True
        if not _DETAIL.fullmatch(parts[i - 1]):
            return False
    return False


def closest_names(wanted: str, known: Iterable[str], cutoff: float) -> list[str]:
    """Return up to three names that differ by a few characters only, closest first."""
    most = max(2, len(wanted) // 5)
    return [
        name
        for name in difflib.get_close_matches(wanted, list(known), n=3, cutoff=cutoff)
        if _edit_distance(wanted, name) <= most
    ]


def _edit_distance(one: str, other: str) -> int:
    """Return the number of characters to insert, delete or replace to turn one string into the other."""
    row = list(range(len(other) + 1))
    for i, character in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (character != wanted))
    return row[-1]
