"""URLs of images and audio: data: URLs, base64 and, if the administrator allows them, http and https."""

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

    Accepts base64 data: URLs, and http(s) URLs until `deadline` if `allows_remote`, but never local files.
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
                "this server does not fetch remote images (--allow-remote-images enables it); send a data: URL"
            )
        from woolly.multimodal.fetch import fetch

        return fetch(address, deadline=deadline)
    if scheme == "file":
        raise RequestError("file: URLs are not supported; send the image as a data: URL")
    raise RequestError(f"{address[:40]!r} is not an image URL; expected data:image/png;base64,...")


def audio_bytes(address: str) -> bytes:
    """Return the bytes of a base64 data: URL. Audio is never fetched."""
    head = _DATA.match(address[:256])
    if head is None:
        raise RequestError(
            f"{address[:40]!r} is not an audio URL; expected data:audio/wav;base64,... (audio is not fetched)"
        )
    check_audio_type(head[1])
    return read_base64(address[head.end() :], "audio")


def file_bytes(data: str) -> bytes:
    """Return the bytes of a PDF file from a data: URL or base64. The caller has fetched http URLs."""
    if (found := _SCHEME.match(data[:64])) is None:
        return read_base64(data, "file")
    if (head := _DATA.match(data[:256])) is None:
        if found[1].lower() in ("http", "https"):
            raise RequestError(
                "this server does not fetch remote files (--allow-remote-images enables it); send"
                " data:application/pdf;base64,..."
            )
        raise RequestError(f"{data[:40]!r} is not a PDF file; expected data:application/pdf;base64,...")
    check_file_type(head[1])
    return read_base64(data[head.end() :], "file")


def check_file_type(type: str) -> None:
    """Raise RequestError if a media type is not PDF."""
    if type.lower() not in ("application/pdf", "application/x-pdf", "application/octet-stream"):
        raise RequestError(f"the media type is {type[:60]!r}; expected application/pdf")


def video_bytes(data: str) -> bytes:
    """Return the bytes of a video from a data: URL or base64. The caller has fetched http URLs."""
    if (found := _SCHEME.match(data[:64])) is None:
        return read_base64(data, "video")
    if (head := _DATA.match(data[:256])) is None or head[1].lower().partition("/")[0] != "video":
        if found[1].lower() in ("http", "https"):
            raise RequestError(
                "this server does not fetch remote videos (--allow-remote-images enables it); send"
                " data:video/mp4;base64,..."
            )
        raise RequestError(f"{data[:40]!r} is not a video; expected data:video/mp4;base64,...")
    return read_base64(data[head.end() :], "video")


def check_audio_type(type: str) -> None:
    """Raise RequestError if a media type is not an audio type."""
    kind = type.lower().partition("/")[0]
    if kind not in ("audio", "application"):  # application/ogg is a valid type of OGG files
        raise RequestError(f"the media type is {type[:60]!r}; expected audio ({SUPPORTED_AUDIO})")


def check_image_type(type: str) -> None:
    """Raise RequestError if a media type is not a supported image type."""
    kind, _, name = type.lower().partition("/")
    if kind != "image":
        raise RequestError(f"the media type is {type[:60]!r}; expected an image ({SUPPORTED})")
    if name.startswith("svg"):
        raise RequestError("SVG files are not supported; convert the image to PNG or JPEG")


def read_base64(text: str, what: str = "image") -> bytes:
    """Return the bytes of base64 data; raise RequestError if it is invalid or too long."""
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise RequestError(
            f"the {what} is larger than {MAX_BYTES >> 20} MiB; send a smaller file",
            limit=MAX_BYTES,
        )
    if not text:
        raise RequestError(f"the {what} is empty; expected a file in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"the {what} is not valid base64; expected a file in base64") from None
