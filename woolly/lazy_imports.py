"""Lazy imports for packages.

A package that imports all its files slows down every user: `woolly run` would import twice as many modules as it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_getattr(package: str, files: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package. `files` maps each file to its public names, separated by spaces.

    A name must not equal the name of a file, because importing the file sets this attribute of the package.
    """
    places = {name: file for file, names in files.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return find
