"""Pages of a PDF file: text layer and rendered image.

pdfium reads the file in a subprocess with limits, because malicious files have exploited every PDF reader.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from woolly.errors import RequestError
from woolly.machine.limited_process import can_start
from woolly.machine.optional_packages import install_command
from woolly.multimodal import MAX_PAGES
from woolly.multimodal.decoder_process import run_decoder
from woolly.multimodal.image import Image
from woolly.multimodal.image_formats import MAX_BYTES

_MAX_CHARS = 4_000_000  # per conversation: a million tokens
_SCALE = 2.0  # pixels per point: 144 dpi, at which 8-point print is legible
_MAX_SIDE = 2048  # pixels; a page of 200 inches is rendered at a lower resolution
_MAX_PIXELS = 200_000_000  # per file; also the limit for the images of a conversation
_MAX_PACKED_BYTES = 128 << 20  # compressed pages of a file: 30 photos, or a thousand printed pages
_MAX_OUTPUT_BYTES = _MAX_PACKED_BYTES + (32 << 20)  # output of the subprocess, including 6 or 12 bytes per character

_MEMORY = 1 << 30  # memory of the subprocess; scanned pages take 150 MB
_SECONDS = 40  # CPU seconds; 50 scanned pages take 10
_PATIENCE = 120.0  # wall clock seconds, for a loaded machine
_SLOTS = threading.BoundedSemaphore(2)  # concurrent subprocesses

_KEPT = 256 << 20  # cache size in bytes; 100 KB per printed page, 4 MB per photo
_PACKAGES = ("pypdfium2", "pypdfium2_raw")
_PASSWORD, _SECURITY = 4, 5  # FPDF_ERR_*


@dataclass(frozen=True, eq=False)
class Page:
    """Text and image of a page."""

    number: int  # starting at 1
    text: str  # text layer; empty for a scan
    width: int = 0  # pixels; 0 if the page is not rendered or has no size
    height: int = 0
    compressed: bytes = field(default=b"", repr=False)

    @property
    def image(self) -> Image:
        """Rendered page."""
        n_bytes = self.width * self.height * 3
        try:
            pixels = zlib.decompressobj().decompress(self.compressed, n_bytes)
            return Image(np.frombuffer(pixels, np.uint8, n_bytes).reshape(self.height, self.width, 3))
        except (ValueError, zlib.error):  # invalid output of the subprocess
            raise _damaged("the file") from None


@dataclass(frozen=True)
class FileUsage:
    """Part of a conversation's limits that earlier files have used."""

    n_pages: int = 0
    n_characters: int = 0

    def more(self, pages: tuple[Page, ...]) -> FileUsage:
        """Return the usage including the pages of another file."""
        return FileUsage(self.n_pages + len(pages), self.n_characters + sum(len(page.text) for page in pages))


_NOTHING = FileUsage()


class _Packed(Protocol):
    @property
    def compressed(self) -> bytes: ...

    @property
    def text(self) -> str: ...


Item = TypeVar("Item", bound=_Packed)


class FileCache(Generic[Item]):
    """LRU cache of pages or frames by file digest, because each turn of a conversation sends its files again."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._files: OrderedDict[bytes, tuple[Item, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> tuple[Item, ...] | None:
        """Return the cached pages of a file, or None if the file is not cached."""
        with self._lock:
            if digest in self._files:
                self._files.move_to_end(digest)
            return self._files.get(digest)

    def keep(self, digest: bytes, pages: tuple[Item, ...]) -> None:
        """Cache the pages of a file, and evict the least recently used files."""
        with self._lock:
            self._files[digest] = pages
            while sum(map(_size, self._files.values())) > self._room:
                self._files.popitem(last=False)


_kept: FileCache[Page] = FileCache(_KEPT)


def is_pdf(source: Any) -> bool:
    """True if a path or bytes begin like a PDF file. A pipe is not opened, because it can only be read once."""
    try:
        if isinstance(source, (str, os.PathLike)):
            path = Path(source).expanduser()
            if not path.is_file():
                return False
            with path.open("rb") as file:
                return file.read(4) == b"%PDF"
        return isinstance(source, (bytes, bytearray, memoryview)) and bytes(source[:4]) == b"%PDF"
    except (OSError, ValueError, RuntimeError):  # reported by `read_file`
        return False


def read_file(source: Any) -> bytes:
    """Return the bytes of a path or the given bytes, at most one byte above the limit."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if not isinstance(source, (str, os.PathLike)):
        raise RequestError(f"the file is a {type(source).__name__}; expected a path or bytes")
    try:
        with Path(source).expanduser().open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: NUL in path; RuntimeError: no home
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"cannot read file {source}: {reason}; check its path") from None


def read_pages(
    data: bytes,
    name: str = "the file",
    *,
    with_images: bool,
    most: int = MAX_PAGES,
    before: FileUsage = _NOTHING,
    deadline: float = math.inf,
) -> tuple[Page, ...]:
    """Return the pages of a PDF file, rendered if `with_images`.

    Raise RequestError for a file that is not a PDF file, damaged, encrypted or too expensive to decode, for more than
    `most` pages including the files in `before`, or if decoding does not finish before `deadline` (on the clock of
    time.monotonic). Error messages begin with `name`.
    """
    _check(data, name)
    digest = hashlib.blake2b(
        data, digest_size=32, person=b"woolly pdf", salt=b"sees" if with_images else b"text"
    ).digest()
    pages = _kept.find(digest)
    if pages is None:
        pages = _read(data, name, before, with_images=with_images, most=most, deadline=deadline)
        _kept.keep(digest, pages)
    _check_number(len(pages), name, most, before)
    if before.more(pages).n_characters > _MAX_CHARS:
        raise _too_long(name, before)
    return pages


def _check(data: bytes, name: str) -> None:
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"{name} is larger than {MAX_BYTES >> 20} MiB; send a smaller file",
            limit=MAX_BYTES,
        )
    if b"%PDF" not in data[:1024]:  # PDF readers allow other bytes before the header
        raise RequestError(f"{name} is not a PDF file")


def _check_number(n_pages: int, name: str, most: int, before: FileUsage) -> None:
    if n_pages < 1:
        raise RequestError(f"{name} has no pages; send another file")
    if before.n_pages and before.n_pages + n_pages > most:
        raise RequestError(f"the PDF files of the conversation have more than {most} pages in total; send fewer pages")
    if n_pages > most:
        raise RequestError(
            f"{name} has {n_pages} pages, but the limit is {most}; send fewer pages", limit=most, given=n_pages
        )


def _too_long(name: str, before: FileUsage) -> RequestError:
    if before.n_characters:
        many = f"the PDF files of the conversation have more than {_MAX_CHARS} characters of text in total"
        return RequestError(f"{many}; send fewer pages")
    return RequestError(f"{name} has more than {_MAX_CHARS} characters of text; send fewer pages")


def _read(
    data: bytes, name: str, before: FileUsage, *, with_images: bool, most: int, deadline: float
) -> tuple[Page, ...]:
    order = {
        "memory": _MEMORY,
        "seconds": _SECONDS,
        "path": _packages(),
        "with_images": with_images,
        "max_pages": most - before.n_pages,
        "max_chars": _MAX_CHARS - before.n_characters,
        "max_pixels": _MAX_PIXELS,
        "max_packed_bytes": _MAX_PACKED_BYTES,
        "scale": _SCALE,
        "max_side": _MAX_SIDE,
    }
    if not can_start():
        raise RequestError("PDF files are decoded in a Python subprocess, which cannot be started here; send images")
    written = run_decoder(
        *("pdf_child.py", order, data, _SLOTS),
        name=name,
        patience=_PATIENCE,
        deadline=deadline,
        max_output_bytes=_MAX_OUTPUT_BYTES,
    )
    if written is None:
        raise RequestError(
            f"{name} is damaged, or takes more than {_SECONDS} s or {_MEMORY >> 30} GB to decode; save it"
            " again, or send its pages as images"
        )
    try:
        return _parsed(written, name, most, before)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise _damaged(name) from None  # a malicious file may control the subprocess


def missing_reader() -> str | None:
    """Return the reason why this installation reads no PDF files, or None if it reads them."""
    if len(_folders()) < len(_PACKAGES):
        return f"PDF files need the package pypdfium2: {install_command('pdf')}"
    return None


def _folders() -> list[str]:
    """Return the folders of pdfium, which is never imported into this process because of malicious files."""
    found = [find_spec(package) for package in _PACKAGES]
    return [str(Path(one.origin).absolute().parents[1]) for one in found if one is not None and one.origin is not None]


def _packages() -> list[str]:
    if (reason := missing_reader()) is not None:
        raise RequestError(reason)
    return sorted(set(_folders()))


def _parsed(written: bytes, name: str, most: int, before: FileUsage) -> tuple[Page, ...]:
    """Parse the output of the subprocess."""
    line, place = _line(written, 0)
    if "fault" in line:
        raise _refusal(line, name)
    n_pages = line["pages"]
    _check_number(n_pages, name, most, before)
    pages: list[Page] = []
    while len(pages) < n_pages:
        line, place = _line(written, place)
        if line.get("fault") == "characters":
            raise _too_long(name, before)
        if line.get("fault") == "pixels":
            raise RequestError(
                f"the pages of {name} have more than {_MAX_PIXELS // 1_000_000} million pixels in total, or"
                f" {_MAX_PACKED_BYTES >> 20} MB when compressed; send fewer pages"
            )
        if "fault" in line:
            raise RequestError(
                f"{name} is a damaged PDF file (page {len(pages) + 1}); save it again, or send another file"
            )
        width, height, n_bytes = (int(line[key]) for key in ("width", "height", "bytes"))
        if n_bytes < 0 or not (0 <= width <= _MAX_SIDE and 0 <= height <= _MAX_SIDE):
            raise ValueError("invalid page size")
        compressed = written[place : place + n_bytes]
        place += n_bytes
        pages.append(Page(len(pages) + 1, _plain(line["text"]), width, height, compressed))
    return tuple(pages)


def _line(written: bytes, place: int) -> tuple[dict[str, Any], int]:
    end = written.index(b"\n", place)
    return json.loads(written[place:end]), end + 1


def _refusal(line: dict[str, Any], name: str) -> RequestError:
    if line["code"] == _PASSWORD:
        return RequestError(f"{name} needs a password; save it without encryption")
    if line["code"] == _SECURITY:
        return RequestError(f"{name} has unsupported encryption; save it without encryption")
    return _damaged(name)


def _damaged(name: str) -> RequestError:
    return RequestError(f"{name} is a damaged PDF file; save it again, or send another file")


def _plain(text: str) -> str:
    """Return text without control characters and lone surrogates."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "ignore").decode().split("\n")
    return "\n".join("".join(c for c in line if c.isprintable() or c == "\t").rstrip() for line in lines).strip()


def _size(pages: tuple[_Packed, ...]) -> int:
    return sum(len(page.compressed) + 4 * len(page.text) for page in pages)
