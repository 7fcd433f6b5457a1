"""Models by URL: `pull https://...`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from woolly.errors import StoreError
from woolly.store.checksum import sha256_of
from woolly.store.download import Remote, check_source, download
from woolly.store.file_formats import is_model_file
from woolly.store.model_folder import models_folder


def local_path(url: str) -> Path:
    """Return the path where the file of a URL is stored: its file name in the models folder."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not is_model_file(name) or name.startswith("."):
        raise StoreError(
            f"{url} is not the address of a GGUF file; it must end with .gguf (ggml-NAME.bin for a Whisper model)"
        )
    return models_folder() / name


def find_downloaded(url: str) -> Path | None:
    """Return the file that was pulled from this URL, or None. StoreError if it came from another URL."""
    target = local_path(url)
    if not target.is_file():
        return None
    check_source(url, target)
    return target


def pull_url(url: str, *, sha256: str | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Download a file unless it exists. With a checksum, an existing file is also verified."""
    target = local_path(url)
    if target.exists() and sha256 is not None:
        if sha256_of(target) != sha256.lower():
            raise StoreError(f"{target} already exists with another checksum; remove it with `woolly rm {target.name}`")
        return target  # the bytes are right, so the URL does not matter
    return find_downloaded(url) or download(Remote(url, url, sha256), target, progress, keep_source=True)
