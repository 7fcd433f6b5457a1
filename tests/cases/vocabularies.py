"""Real vocabularies, in the folder that WOOLLY_TEST_VOCABS names: what depends on them is never dropped in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def find_vocabularies(beside: str = "") -> list[Path]:
    """Every *.gguf of the folder that has a file of its name plus `beside` next to it; none without a folder."""
    folder = os.environ.get("WOOLLY_TEST_VOCABS", "")
    return sorted(path for path in Path(folder).glob("*.gguf") if Path(f"{path}{beside}").exists()) if folder else []


def need_vocabularies(beside: str = "") -> list[Path]:
    """`find_vocabularies`; a folder that was named and holds none fails the test, no folder skips it and says so."""
    found = find_vocabularies(beside)
    if not found:
        folder = os.environ.get("WOOLLY_TEST_VOCABS", "")
        wanted = "a folder of *.gguf with *.gguf.inp and *.gguf.out"
        if folder:
            pytest.fail(f"WOOLLY_TEST_VOCABS is {folder!r}, which is not {wanted}")
        pytest.skip(f"WOOLLY_TEST_VOCABS is not set; it may name {wanted}")
    return found
