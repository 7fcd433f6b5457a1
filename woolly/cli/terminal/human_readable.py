"""Readable numbers."""

from __future__ import annotations


def format_size(n_bytes: float) -> str:
    """Return bytes with a binary unit."""
    if n_bytes < 1 << 20:
        return f"{n_bytes / (1 << 10):.1f} KiB"
    return f"{n_bytes / (1 << 20):.1f} MiB" if n_bytes < 1 << 30 else f"{n_bytes / (1 << 30):.2f} GiB"


def format_duration(seconds: float) -> str:
    """Return seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def plural(n: int, noun: str) -> str:
    """Return `1 token`, `2 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
