"""Download of a file over HTTP with retries. Interrupted downloads resume where they stopped.

huggingface_hub lists repositories (hub_download.py) but does not download: version 2.4 deletes the bytes of a failed
download, does not retry after a connection reset, follows redirects to plain HTTP, and only supports the hub.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from woolly.errors import StoreError
from woolly.machine.file_lock import file_lock
from woolly.store.checksum import CHUNK, sha256_of
from woolly.store.file_formats import magic_error
from woolly.store.inventory import list_models
from woolly.store.safe_files import fsync_and_rename

if TYPE_CHECKING:
    from urllib.error import HTTPError

HUB = "https://huggingface.co"  # default of HF_ENDPOINT

Progress = Callable[[int, int], None]

_OFFLINE = "WOOLLY_OFFLINE"  # set by --offline; allows no server
_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 5  # consecutive attempts without data
_PAUSE = 0.5  # seconds before the second attempt, then doubled


@dataclass(frozen=True)
class Remote:
    """File on a server, with known properties."""

    url: str
    name: str  # shown in messages, and the argument of `woolly pull`
    sha256: str | None = None
    n_bytes: int | None = None
    token: str | None = None  # only sent to the host of the URL
    file: str | None = None  # path in a repository of the hub


class _NoSuchRestError(ConnectionError):
    """The server has no bytes at this offset. `n_bytes` is the length that it reported, or -1."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__("the file has changed meanwhile")
        self.n_bytes = n_bytes


def open_url(remote: Remote, headers: Mapping[str, str] | None = None, method: str = "GET") -> Any:
    """Return an open response. Raise StoreError if the server rejects the request."""
    # Imported late: HTTP modules take 30 ms to import, and most models are on the disk.
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    check_online(remote.url, remote.url)
    request = Request(remote.url, headers={"User-Agent": "woolly", **(headers or {})}, method=method)
    if remote.token:
        # Not sent after a redirect, which usually leads to another company's servers.
        request.add_unredirected_header("Authorization", f"Bearer {remote.token}")
    try:
        response = urlopen(request, timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        raise _refusal(remote, error) from None
    if remote.url.startswith("https://") and not response.url.startswith("https://"):
        response.close()
        raise StoreError(
            f"{remote.url} redirects to {urlsplit(response.url).netloc} without encryption, so it is rejected"
        )
    return response


def download(remote: Remote, target: Path, progress: Progress | None = None, *, keep_source: bool = False) -> Path:
    """Download a file to `target`, which only exists when it is complete and its checksum (if known) is verified.

    Until then, the data is in `NAME.partial` in the same folder, from which the next call resumes. With `keep_source`,
    a note next to the file stores its address, and an existing file from another address raises StoreError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")

    def waiting() -> None:
        if progress is not None and remote.n_bytes and partial.exists():
            progress(partial.stat().st_size, remote.n_bytes)

    with file_lock(target.with_name(f".{target.name}.lock"), waiting):
        if target.exists():  # another process may have downloaded it in the meantime
            if keep_source:
                check_source(remote.url, target)
            return target
        _fetch(remote, partial, progress)
        _check(remote, partial)
        if keep_source:
            source_note(target).write_text(json.dumps({"url": remote.url}))
        fsync_and_rename(partial, target)
        _note(partial).unlink(missing_ok=True)
    return target


def check_source(url: str, target: Path) -> None:
    """Raise StoreError if a file was downloaded from another address that ends with the same name."""
    source = _read_note(source_note(target)).get("url")
    if source != url:
        origin = f"from {source}" if source else "and not from this address"
        raise StoreError(f"{target} already exists, {origin}; run `woolly rm {target.name}` before pulling {url}")


def source_note(target: Path) -> Path:
    """Return the path of the note with the source address of a file."""
    return target.with_name(f"{target.name}.source.json")


def _fetch(remote: Remote, partial: Path, progress: Progress | None) -> None:
    from http.client import HTTPException

    failures = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            _fetch_once(remote, partial, progress)
            return
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                raise
            after = partial.stat().st_size if partial.exists() else 0
            failures = 1 if after > before else failures + 1
            if failures >= _ATTEMPTS:
                raise StoreError(unreachable(remote.url, remote.name, error, after)) from error
            time.sleep(_PAUSE * 2 ** (failures - 1))


def _fetch_once(remote: Remote, partial: Path, progress: Progress | None) -> None:
    """Download over one connection. If it ends early, raise an error so that the caller retries."""
    from http.client import IncompleteRead

    start, tag = _resumable(remote, partial)
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if tag:
            headers["If-Range"] = tag
    if start and start == remote.n_bytes:
        return  # complete, but a process was killed before verifying it
    try:
        response = open_url(remote, headers)
    except _NoSuchRestError as error:
        if start and error.n_bytes == start:
            return
        _forget(partial)
        raise
    with response:
        if response.status != 206:
            start = 0  # the server sends the complete file: it has changed, or cannot be resumed
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            _forget(partial)
            raise ConnectionError("the server sent another range than requested")
        length = response.headers.get("Content-Length") or ""
        total = remote.n_bytes or (start + int(length) if length.isdecimal() else 0)
        check_free_space(remote.name, partial.parent, total - start)
        tag = response.headers.get("ETag") or ""
        _note(partial).write_text(json.dumps({"url": remote.url, "etag": "" if tag.startswith("W/") else tag}))
        with partial.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            done = start
            while chunk := response.read(CHUNK):
                done += len(chunk)
                if done > total > 0:
                    _forget(partial)
                    raise StoreError(f"{remote.url} sent more than the expected {total} bytes; pull it again")
                file.write(chunk)
                if progress is not None:
                    progress(done, max(total, done))
    if total and done < total:
        raise IncompleteRead(b"", total - done)


def _resumable(remote: Remote, partial: Path) -> tuple[int, str]:
    """Return the number of valid bytes on disk, and the ETag to request the rest with."""
    note = _read_note(_note(partial))
    start = partial.stat().st_size if partial.exists() else 0
    too_long = remote.n_bytes is not None and start > remote.n_bytes
    # Without an ETag or a checksum, the rest might belong to another version of the file.
    known = bool(note.get("etag")) or remote.sha256 is not None
    return (start, note.get("etag", "")) if note.get("url") == remote.url and known and not too_long else (0, "")


def _check(remote: Remote, partial: Path) -> None:
    with partial.open("rb") as file:  # checkpoints also have other files
        problem = magic_error(remote.file or partial.name.removesuffix(".partial"), file.read(4))
    if remote.sha256 is not None and (found := sha256_of(partial)) != remote.sha256.lower():
        problem = f"its checksum is {found}, not the expected {remote.sha256.lower()}"
    if problem is not None:
        _forget(partial)
        raise StoreError(
            f"the download from {remote.url} was removed because {problem}; check the address, or pull it again"
        )


def _note(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


def _read_note(note: Path) -> dict[str, str]:
    """Return the contents of a note, empty if it is missing or invalid."""
    try:
        facts = json.loads(note.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in facts.items() if isinstance(v, str)} if isinstance(facts, dict) else {}


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _note(partial).unlink(missing_ok=True)


def check_free_space(name: str, folder: Path, n_bytes: int) -> None:
    """Raise StoreError if the disk of a folder has less than `n_bytes` free."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise StoreError(
            f"{name} needs another {-(-n_bytes // 10**6)} MB, but the disk of {folder} has "
            f"{free // 10**6} MB free; free some space, or set WOOLLY_HOME to a folder on another disk"
        )


def _refusal(remote: Remote, error: HTTPError) -> Exception:
    if error.code in (408, 425, 429, 500, 502, 503, 504):
        return ConnectionError(f"the server answers {error.code} {error.reason}")
    if error.code == 416:
        found = re.fullmatch(r"bytes \*/(\d{1,18})", error.headers.get("Content-Range", ""))
        return _NoSuchRestError(int(found[1]) if found else -1)
    if error.code in (401, 403):
        return StoreError(
            f"{remote.url} may not be read ({error.code} {error.reason}): if it is private or gated, accept its "
            f"terms and set HF_TOKEN to a token that may read it"
        )
    return StoreError(f"there is no {remote.url} ({error.code} {error.reason}): check the name")


def is_offline() -> bool:
    """True if the user disabled access to the hub, with --offline or the variables of huggingface_hub."""
    values = (os.environ.get(name, "").upper() for name in (_OFFLINE, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value in ("1", "ON", "YES", "TRUE") for value in values)


def check_online(url: str, name: str) -> None:
    """Raise StoreError for any address with --offline, and for a hub address if HF_HUB_OFFLINE is set."""
    if os.environ.get(_OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE"):
        raise StoreError(f"{_OFFLINE} is set, as --offline does, so {name} is not downloaded; {_models_here()}")
    hub = os.environ.get("HF_ENDPOINT") or HUB
    if is_offline() and urlsplit(url).netloc == urlsplit(hub).netloc:
        raise StoreError(f"HF_HUB_OFFLINE is set, so {name} is not downloaded; {_models_here()}")


def _models_here() -> str:
    names = [model.name for model in list_models()]
    here = f"unset it, or use a model that is here: {', '.join(names)}"
    return here if names else "unset it, because no model is here"


def unreachable(url: str, name: str, error: BaseException, n_bytes: int = 0) -> str:
    """Return the error for a server that cannot be reached. `n_bytes` of the file are already on disk."""
    if n_bytes:
        rest = f"; {n_bytes // 10**6} MB are kept, and `woolly pull {name}` goes on from there"
    else:
        rest = f"; models here: {', '.join(model.name for model in list_models()) or 'none'}"
    return f"cannot reach {urlsplit(url).netloc or url} for {name} ({_in_words(error)}): check the network{rest}"


def _in_words(error: BaseException) -> str:
    """Return the reason of the first error in a chain, without the system's error number."""
    import socket
    from http.client import IncompleteRead

    seen: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in seen:
        seen.append(step)
        reason = getattr(step, "reason", None)
        step = reason if isinstance(reason, BaseException) else step.__cause__ or step.__context__
    kinds: tuple[tuple[type[BaseException], str], ...] = (
        (socket.gaierror, "there is no network, or no such host"),
        (TimeoutError, "no answer"),
        (IncompleteRead, "the connection was cut"),
    )
    for kind, words in kinds:
        if any(isinstance(one, kind) for one in seen):
            return words
    last = seen[-1]
    text = getattr(last, "strerror", None) or str(last).partition("\n")[0] or type(last).__name__
    return re.sub(r"\[Errno -?\d+\] ?", "", text)
