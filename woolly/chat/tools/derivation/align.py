"""Common prefixes and suffixes of rendered strings, which never split a marker."""

from __future__ import annotations

import re

# A tag or a control token, the beginning of a tag at the end of a string, and a tag after MiniMax M3's namespace token.
MARK = re.compile(r"(?:\]<\]\w+\[>\[)?<[^<>]*(?:>|\Z)|\[/?[A-Z_]+\]")
_HEAD = re.compile(r"[^<>\[\]]*>")  # the end of a tag at the start of a string


def common_start(a: str, b: str) -> str:
    """Return the longest common prefix that ends outside of markers."""
    n = _n_alike(a, b)
    while (cut := min(_inside(a, n), _inside(b, n))) < n:
        n = cut
    return a[:n]


def common_end(a: str, b: str) -> str:
    """Return the longest common suffix that begins outside of markers."""
    n = _n_alike(a[::-1], b[::-1])
    while n and (cut := min(_after(a, n), _after(b, n))) < n:
        n = cut
    return a[len(a) - n :]


def marks_in(text: str) -> list[re.Match[str]]:
    """Return the markers in a string."""
    return [match for match in MARK.finditer(text) if match[0]]


def _n_alike(a: str, b: str) -> int:
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def _inside(text: str, n: int) -> int:
    """Return the start of the marker that the first `n` characters cut, or `n` if they cut no marker."""
    return next((match.start() for match in MARK.finditer(text) if match.start() < n < match.end()), n)


def _after(text: str, n: int) -> int:
    """Return how many of the last `n` characters follow the marker that they cut, or `n` if they cut no marker."""
    at = len(text) - n
    head = _HEAD.match(text)
    if head is not None and 0 < at < head.end():
        return len(text) - head.end()
    return next((len(text) - match.end() for match in MARK.finditer(text) if match.start() < at < match.end()), n)
