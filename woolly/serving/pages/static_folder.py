"""Static files of --path, served at / instead of the web page."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles


class Folder(StaticFiles):
    """Files in a folder; subfolders show their index.html.

    Symbolic links that lead out of the folder are not followed.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True)

    def is_public(self, method: str, path: str) -> bool:
        """Return True if a request is for a file of the folder. Like the web page, files need no key."""
        if method not in ("GET", "HEAD"):
            return False
        inner = path.lstrip("/")
        places = (inner, f"{inner}/index.html" if inner else "index.html")
        return any(self.lookup_path(place)[1] is not None and self._is_file(place) for place in places)

    def _is_file(self, place: str) -> bool:
        full, _ = self.lookup_path(place)
        return bool(full) and Path(full).is_file()
