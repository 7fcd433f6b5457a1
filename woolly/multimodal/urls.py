"""URLs of images and audio: data: URLs, base64 and, if the administrator allows it, http and https."""

from __future__ import annotations

import base64
import binascii
import math
import re

from woolly.errors import RequestError
from woolly.multimodal.audio.format import SUPPORTED as SUPPORTED_AUDIO
from woolly.multimodal.image_formats import MAX_BYTES, SUPPORTED

_DATA = re.compile(r"data:([a-z]+/[a-z0-9.+-]+)((?:;[a-z0-9-]+=[^;,]*)*);base64,", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


def image_bytes(address: str, *, allows_remote: bool = False, deadline: float = math.inf) -> bytes:
    """Return the bytes of an image URL.

    Accepts base64 data: URLs, and http and https until `deadline` if `allows_remote`; never local files.
    """
    found = _SCHEME.match(address)
    scheme = found[1].lower() if found else ""
    if scheme == "data":
        head = _DATA.match(address[:256])
        if head is None:
            raise RequestError("the data: URL is malformed; expected data:image/png;base64,... or another type")
        check_image_type(head[1])
        return read_base64(address[head.end() :])
    if scheme in ("http", "https"):
        if not allows_remote:
            raise RequestError(
                "images are not fetched from other servers here (--allow-remote-images allows it); send a data: URL"
            )
        from woolly.multimodal.fetch import fetch

        return fetch(address, deadline=deadline)
    if scheme == "file":
        raise RequestError("files of the server are not read for a client; send the image as a data: URL")
    raise RequestError(f"{address[:40]!r} is not an image URL; expected data:image/png;base64,...")


def audio_bytes(address: str) -> bytes:
    """Return the bytes of a base64 data: URL; audio is never fetched."""
    head = _DATA.match(address[:256])
    if head is None:
        raise RequestError(
            f"{address[:40]!r} is not an audio URL; expected data:audio/wav;base64,... (audio is not fetched)"
        )
    check_audio_type(head[1])
    return read_base64(address[head.end() :], "audio")


def file_bytes(data: str) -> bytes:
    """Return the bytes of a PDF file in a data: URL or in plain base64; http URLs are fetched before."""
    if (found := _SCHEME.match(data[:64])) is None:
        return read_base64(data, "file")
    if (head := _DATA.match(data[:256])) is None:
        if found[1].lower() in ("http", "https"):
            raise RequestError(
                "files are not fetched from other servers here (--allow-remote-images allows it); send"
                " data:application/pdf;base64,..."
            )
        raise RequestError(f"{data[:40]!r} is no file; expected data:application/pdf;base64,...")
    check_file_type(head[1])
    return read_base64(data[head.end() :], "file")


def check_file_type(type: str) -> None:
    """Raise RequestError if a media type is not that of a PDF file."""
    if type.lower() not in ("application/pdf", "application/x-pdf", "application/octet-stream"):
        raise RequestError(f"its type is {type[:60]!r}; a PDF file was expected, application/pdf")


def video_bytes(data: str) -> bytes:
    """Return the bytes of a video in a data: URL or in plain base64; http URLs are fetched before."""
    if (found := _SCHEME.match(data[:64])) is None:
        return read_base64(data, "video")
    if (head := _DATA.match(data[:256])) is None or head[1].lower().partition("/")[0] != "video":
        if found[1].lower() in ("http", "https"):
            raise RequestError(
                "videos are not fetched from other servers here (--allow-remote-images allows it); send"
                " data:video/mp4;base64,..."
            )
        raise RequestError(f"{data[:40]!r} is not a video; expected data:video/mp4;base64,...")
    return read_base64(data[head.end() :], "video")


def check_audio_type(type: str) -> None:
    """Raise RequestError if a media type is not an audio type."""
    kind = type.lower().partition("/")[0]
    if kind not in ("audio", "application"):  # application/ogg is a name of OGG files
        raise RequestError(f"its type is {type[:60]!r}; an audio clip was expected, as {SUPPORTED_AUDIO}")


def check_image_type(type: str) -> None:
    """Raise RequestError if a media type is not that of a supported image format."""
    kind, _, name = type.lower().partition("/")
    if kind != "image":
        raise RequestError(f"its type is {type[:60]!r}; an image was expected, as {SUPPORTED}")
    if name.startswith("svg"):
        raise RequestError("it is an SVG file, which is not taken; send it as PNG or JPEG")


def read_base64(text: str, what: str = "image") -> bytes:
    """Return the bytes of base64 text; RequestError if it is not valid base64, or too long."""
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise RequestError(
            f"the {what} has more than {MAX_BYTES >> 20} MiB, the maximum; send a smaller one",
            limit=MAX_BYTES,
        )
    if not text:
        raise RequestError(f"the {what} is empty; a file in base64 was expected")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"the {what} is not valid base64; the bytes of a file in base64 were expected") from None
