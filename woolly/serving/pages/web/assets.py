"""Assets: the files of the page, read once and served from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "static"

# Files with other endings are not served.
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """One file: its bytes, their type, and a tag that changes with them."""

    body: bytes
    media_type: str
    etag: str


class Assets:
    """The files below a folder by their paths within it.

    `stamp` changes when any file changes. The page names its files below the stamp, so that a browser caches them for
    ever and never mixes files of two versions.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    @cached_property
    def files(self) -> Mapping[str, Asset]:
        """Return all files."""
        found = {}
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and path.suffix in _TYPES:
                body = path.read_bytes()
                found[path.relative_to(self._folder).as_posix()] = _asset(body, _TYPES[path.suffix])
        return found

    @cached_property
    def stamp(self) -> str:
        """Return twelve hexadecimal digits."""
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(f"{name} {asset.etag}\n".encode())
        return digest.hexdigest()[:12]

    @cached_property
    def page(self) -> Asset:
        """Return the page itself, with the stamp in the addresses of its files."""
        page = self.files["index.html"]
        return _asset(page.body.replace(b'"web/', f'"web/{self.stamp}/'.encode()), page.media_type)


def _asset(body: bytes, media_type: str) -> Asset:
    return Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
