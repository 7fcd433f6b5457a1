"""Models by their address: `pull https://...`."""

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
    """Returns the path that the file of an address is stored at: its own name, in the models folder."""
    name = PurePosixPath(unquote(urlsplit(url).path)).name
    if not is_model_file(name) or name.startswith("."):
        raise StoreError(
            f"{url} names no GGUF file: give the address of the file itself, which ends with .gguf"
            " (ggml-NAME.bin for a Whisper model)"
        )
    return models_folder() / name


def find_downloaded(url: str) -> Path | None:
    """Returns the file that was pulled from this address, or None; StoreError if its name came from another one."""
    target = local_path(url)
    if not target.is_file():
        return None
    check_source(url, target)
    return target


def pull_url(url: str, *, sha256: str | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Downloads a file unless it is here; with a checksum, a file that is here is checked too."""
    target = local_path(url)
    if target.exists() and sha256 is not None:
        if sha256_of(target) != sha256.lower():
            raise StoreError(f"{target} is there already with another checksum: `woolly rm {target.name}` removes it")
        return target  # the right bytes, from whatever address
    return find_downloaded(url) or download(Remote(url, url, sha256), target, progress, keep_source=True)
