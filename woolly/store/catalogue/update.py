"""Update of the catalogue, on the user's request only.

The catalogue determines the file for each model name, so an update is only installed if it has the SHA-256 that the
user passes. The owner of the hub repository therefore cannot substitute a different catalogue. Until then, or if it is
invalid, the current catalogue is used.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from woolly.errors import StoreError
from woolly.store.catalogue.families import Catalogue, parse_catalogue, pulled_catalogue, read_catalogue
from woolly.store.download import HUB, Remote, open_url, unreachable
from woolly.store.safe_files import atomic_write

_REPO = "woolly-llm/catalogue"
_MAX_BYTES = 4 << 20  # bytes; the shipped catalogue has 50,000


@dataclass(frozen=True)
class FoundCatalogue:
    """Downloaded catalogue: validated, but not installed."""

    url: str
    data: bytes
    catalogue: Catalogue

    @property
    def sha256(self) -> str:
        """SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


def find_catalogue(url: str | None = None) -> FoundCatalogue:
    """Download the catalogue from an address, or the project's catalogue on the hub. Writes nothing.

    Raises StoreError if it cannot be downloaded or parsed, or is older than the current catalogue.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    url = url or f"{endpoint}/{_REPO}/resolve/main/catalogue.json"
    try:
        with open_url(Remote(url, "the catalogue")) as response:
            data: bytes = response.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StoreError(unreachable(url, "the catalogue", error)) from error
    if len(data) > _MAX_BYTES:
        raise StoreError(f"{url} has more than {_MAX_BYTES} bytes, the maximum for a catalogue; check the address")
    found = parse_catalogue(data)
    if found.updated < read_catalogue().updated:
        raise StoreError(f"{url} is of {found.updated}, older than the current catalogue of {read_catalogue().updated}")
    return FoundCatalogue(url, data, found)


def install_catalogue(found: FoundCatalogue, sha256: str) -> None:
    """Install a catalogue. Raise StoreError if its SHA-256 differs from the one that the user passes."""
    if found.sha256 != sha256.lower():
        raise StoreError(
            f"the catalogue at {found.url} has the SHA-256 {found.sha256}, not {sha256.lower()}; the current catalogue"
            " is unchanged"
        )
    path = pulled_catalogue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(found.data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error})") from error
