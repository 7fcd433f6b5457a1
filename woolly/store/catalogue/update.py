"""A later catalogue than the one that ships, fetched when a person asks for it and never by itself.

A catalogue decides which files names mean, so it is taken only with the SHA-256 that the person gives: the owner of the
repository on the hub cannot choose another. Until then, and if anything is wrong with it, the catalogue that is here
stays.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from woolly.errors import StoreError
from woolly.store.catalogue.families import Catalogue, own_catalogue, parse_catalogue, read_catalogue
from woolly.store.download import HUB, Remote, open_url, unreachable
from woolly.store.safe_files import atomic_write

_REPO = "woolly-llm/catalogue"
_MAX_BYTES = 4 << 20  # bytes; what ships has 50 thousand


@dataclass(frozen=True)
class FoundCatalogue:
    """Catalogue downloaded from a server: validated, not yet installed."""

    url: str
    data: bytes
    catalogue: Catalogue

    @property
    def sha256(self) -> str:
        """Returns the SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()


def find_catalogue(url: str | None = None) -> FoundCatalogue:
    """Returns the catalogue at an address, or that of the project on the hub; writes nothing.

    StoreError if it cannot be had, cannot be read, or is older than the one in use.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    url = url or f"{endpoint}/{_REPO}/resolve/main/catalogue.json"
    try:
        with open_url(Remote(url, "the catalogue")) as response:
            data: bytes = response.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StoreError(unreachable(url, "the catalogue", error)) from error
    if len(data) > _MAX_BYTES:
        raise StoreError(f"{url} has over {_MAX_BYTES} bytes, and a catalogue has fewer: check the address")
    found = parse_catalogue(data)
    if found.updated < read_catalogue().updated:
        raise StoreError(f"{url} is of {found.updated}, and the one here is of {read_catalogue().updated}")
    return FoundCatalogue(url, data, found)


def take_catalogue(found: FoundCatalogue, sha256: str) -> None:
    """Makes a catalogue the one in use; StoreError if it does not hash to what the person gives."""
    if found.sha256 != sha256.lower():
        raise StoreError(
            f"the catalogue at {found.url} has the SHA-256 {found.sha256}, not {sha256.lower()}: the one here is kept"
        )
    path = own_catalogue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(found.data)
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error})") from error
