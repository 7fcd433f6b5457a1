"""Modules that are imported when a test first uses them.

Every process that shares the tests imports all their files and runs some of them: only a process that runs a test of
such a module spends seconds on its import.
"""

import importlib
from typing import Any


class Later:
    """A module by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)  # what pytest asks of everything that it finds
        return getattr(importlib.import_module(self._name), attribute)
