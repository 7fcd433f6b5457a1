"""Download of wheels from a package index without pip, because environments created by uv do not include pip."""

from __future__ import annotations

import html
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from woolly.errors import StoreError
from woolly.store.checksum import CHUNK
from woolly.store.download import Remote, open_url, unreachable

_INDEX = "https://pypi.org/simple"
_KINDS = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"  # PEP 691
_MAX_BYTES = 4 << 20  # maximum size of a listing


def fetch_wheel(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of an exact requirement to a folder and return its path. The caller verifies its contents.

    The index is set by uv's or pip's variables; the default is PyPI. `report` is called with the number of bytes on
    disk.
    """
    name, _, version = requirement.partition("==")
    index = next(filter(None, map(os.environ.get, ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"))), _INDEX)
    page = f"{index.rstrip('/')}/{re.sub('[-_.]+', '-', name).lower()}/"
    try:
        with open_url(Remote(page, requirement), {"Accept": _KINDS}) as response:
            url = _find(response.read(_MAX_BYTES), page, f"{name.replace('-', '_')}-{version}-")
        target = folder / url.rpartition("/")[2].partition("#")[0]
        with open_url(Remote(url, requirement)) as response, target.open("wb") as file:
            n_bytes = 0
            while chunk := response.read(CHUNK):
                n_bytes += file.write(chunk)
                report(n_bytes)
    except ConnectionError as error:
        raise StoreError(unreachable(page, requirement, error)) from error
    except OSError as error:
        if error.errno is not None and error.filename is not None:  # disk error
            raise
        raise StoreError(unreachable(page, requirement, error)) from error
    return target


def _find(listing: bytes, page: str, start: str) -> str:
    """Return the address of the first wheel whose name begins with `start`, from a listing in JSON or HTML."""
    try:
        files: list[dict[str, Any]] = json.loads(listing)["files"]
        names = {str(file["filename"]): str(file["url"]) for file in files}
    except (ValueError, KeyError, TypeError):
        links = re.findall(
            r"""<a\s[^>]*href=["']([^"']+)["'][^>]*>\s*([^<]+?)\s*</a>""", listing.decode("utf-8", "replace")
        )
        names = {name: html.unescape(url) for url, name in links}
    for name, url in names.items():
        if name.startswith(start) and name.endswith(".whl") and "/" not in name:
            return urljoin(page, url)
    raise StoreError(
        f"{page} has no wheel {start}…: check which package index UV_DEFAULT_INDEX or PIP_INDEX_URL names, or install"
        f" pip with `{sys.executable} -m ensurepip`"
    )
