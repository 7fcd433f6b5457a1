"""Files of the web page, read once and served from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "static"

# Files with other extensions are not served.
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
    """A file with its media type and ETag."""

    body: bytes
    media_type: str
    etag: str


class Assets:
    """Files below a folder, by relative path.

    `stamp` changes with any file. The page's URLs contain it, so that browsers can cache the files forever and never
    mix files of two versions.
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
        """Return a hash of all files, as twelve hexadecimal digits."""
        digest = hashlib.sha256()
        for name, asset in self.files.items():
            digest.update(f"{name} {asset.etag}\n".encode())
        return digest.hexdigest()[:12]

    @cached_property
    def page(self) -> Asset:
        """Return index.html with the stamp in the URLs of its files."""
        page = self.files["index.html"]
        return _asset(page.body.replace(b'"web/', f'"web/{self.stamp}/'.encode()), page.media_type)


def _asset(body: bytes, media_type: str) -> Asset:
    return Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')
