"""Header of a model file on a server, read with range requests to examine a model before downloading it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from woolly.errors import GGUFError, StoreError
from woolly.gguf import GGUFFile, open_gguf
from woolly.store import HubName, Remote, hub_remotes, is_path, open_url, remote_name
from woolly.store.download import unreachable
from woolly.store.hub import shards_of

# Headers with a large vocabulary have about 10 MB.
_FIRST, _MAX_BYTES = 2 << 20, 128 << 20


def is_remote(spec: str) -> bool:
    """True if the name refers to a file on a server: a name of the hub or the catalogue, or a URL."""
    return not is_path(spec) and remote_name(spec) is not None


@contextmanager
def remote_header(spec: str) -> Iterator[GGUFFile]:
    """Yield an open file. Only the descriptions of its tensors may be used, not the data."""
    meant = remote_name(spec)
    if isinstance(meant, HubName):
        remotes = hub_remotes(meant)
    else:
        head, _, tail = (meant or spec).rpartition("/")
        remotes = [Remote(f"{head}/{name}", spec) for name in shards_of(tail)]
    with tempfile.TemporaryDirectory() as folder:
        places = [remote.file or unquote(urlsplit(remote.url).path) for remote in remotes]
        paths = [Path(folder, place.rsplit("/", 1)[-1]) for place in places]
        for remote, path in zip(remotes, paths, strict=True):
            _fetch(remote, path)
        with open_gguf(paths[0]) as file:
            yield file


def _fetch(remote: Remote, path: Path) -> None:
    """Create a sparse file with the right length that only contains the header."""
    have, wanted = 0, _FIRST
    path.touch()
    while True:
        n_bytes = _append(remote, path, have, wanted)
        have = min(wanted, n_bytes)
        # The zeros after the fetched part must not look like the end of a header.
        try:
            with open_gguf(path) as file:
                if file.end_of_header <= have:
                    return
        except GGUFError as error:
            is_header = path.stat().st_size and _has_magic(path)
            if error.code == "shard":  # other shards are missing, but this header is complete
                return
            if not is_header or have >= min(n_bytes, _MAX_BYTES):
                text = str(error).replace(str(path), remote.url)
                raise GGUFError(text) from None
        wanted *= 4


def _append(remote: Remote, path: Path, start: int, end: int) -> int:
    """Write bytes `start` to `end` of the remote file. Return the length of the complete file."""
    try:
        with open_url(remote, {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}) as response:
            found = re.fullmatch(r"bytes \d+-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if response.status != 206 or found is None:
                raise StoreError(
                    f"{remote.url}: this server does not support range requests; pull the file, then show it"
                )
            data = response.read(end - start)
    except OSError as error:
        raise StoreError(unreachable(remote.url, remote.name, error)) from None
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)
        file.truncate(int(found[1]))
    return int(found[1])


def _has_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
