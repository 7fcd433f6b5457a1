"""Readable numbers."""

from __future__ import annotations


def format_size(n_bytes: float) -> str:
    """Return bytes in kB, MB or GB, the units of the catalogue, of downloads and of the web page."""
    if n_bytes < 1e6:
        return f"{n_bytes / 1e3:.1f} kB"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes < 1e9 else f"{n_bytes / 1e9:.2f} GB"


def format_duration(seconds: float) -> str:
    """Return seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def plural(n: int, noun: str) -> str:
    """Return `1 token`, `2 tokens`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
