"""Later: the `__getattr__` of a package whose names are imported when they are first asked for.

A package that imports all its files makes each of its users wait for all of them: a start of `woolly run` would import
twice the modules that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_getattr(package: str, files: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the `__getattr__` of a package: `files` are the names, separated by spaces, that each file of it has.

    No name may be that of a file: Python sets a package's attribute to the file once that is imported.
    """
    places = {name: file for file, names in files.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return find
