"""Lists of integers in llama-bench's format: 1,2,4 or a range such as 1-8, 1-9+2 or 1-8*2."""

from __future__ import annotations

import re
from collections.abc import Sequence

from woolly.cli.parse.usage_errors import UsageError

_RANGE = re.compile(r"(\d+)-(\d+)(?:([+*])(\d+))?")
# More numbers than this are a mistake.
_MAX_NUMBERS = 1000


def numbers(option: str, texts: Sequence[str], least: int) -> list[int]:
    """Return the numbers of an option that may be repeated, without duplicates, in order."""
    found: list[int] = []
    for text in texts:
        for part in text.split(","):
            try:
                found += _one(part.strip())
            except ValueError:
                found.append(least - 1)
            if len(found) > _MAX_NUMBERS or min(found) < least:
                kind = f"integers from {least}" + (" (0 for none)" if least == 0 else "")
                raise UsageError(f"{option} is {text!r}; expected {kind}, such as {least + 1},8 or 1-8*2")
    return list(dict.fromkeys(found))


def _one(text: str) -> list[int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        return [int(text)]
    first, last, by, step = int(match[1]), int(match[2]), match[3] or "+", int(match[4] or 1)
    if first > last or step < 1 or (by == "*" and (step < 2 or first < 1)):
        raise ValueError(text)
    out = [first]
    while len(out) <= _MAX_NUMBERS and (following := out[-1] * step if by == "*" else out[-1] + step) <= last:
        out.append(following)
    return out
