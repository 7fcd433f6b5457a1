"""Supported image formats, detected by magic bytes."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from woolly.errors import RequestError

MAX_BYTES = 64 * 2**20  # per file
MAX_PIXELS = 100_000_000  # 300 MB as RGB
MAX_SIDE = 65_535  # limit of JPEG; a resize filter takes memory proportional to the longer side


@dataclass(frozen=True)
class ImageFormat:
    """Supported image format and its Pillow plugin."""

    module: str
    name: str

    def plugin(self) -> Callable[..., Any]:
        """Return the plugin class, which only opens this format."""
        return getattr(importlib.import_module(f"PIL.{self.module}"), self.name)  # type: ignore[no-any-return]


# TIFF is not supported because it comprises a dozen codecs in a separate library.
FORMATS: Mapping[str, ImageFormat] = {
    "PNG": ImageFormat("PngImagePlugin", "PngImageFile"),
    "JPEG": ImageFormat("JpegImagePlugin", "JpegImageFile"),
    "WebP": ImageFormat("WebPImagePlugin", "WebPImageFile"),
    "GIF": ImageFormat("GifImagePlugin", "GifImageFile"),
    "BMP": ImageFormat("BmpImagePlugin", "BmpImageFile"),
}
SUPPORTED = "PNG, JPEG, WebP, GIF or BMP"

_FIRST_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"%PDF", "PDF"),
    (b"8BPS", "Photoshop"),
    (b"\0\0\1\0", "ICO"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"GGUF", "GGUF"),
)
_RUN_LENGTHS = (1, 2)  # biCompression RLE8 and RLE4 of BMP files, which Pillow decodes slowly, in Python
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC"}


def detect_format(data: bytes, name: str) -> str:
    """Return the format of a file by its magic bytes, a key of FORMATS; raise RequestError if unsupported."""
    if len(data) > MAX_BYTES:
        raise RequestError(
            f"{name} is larger than {MAX_BYTES >> 20} MiB; send a smaller file",
            limit=MAX_BYTES,
        )
    if not data:
        raise RequestError(f"{name} is empty; expected a {SUPPORTED} file")
    kind = _kind(data)
    if kind is None:
        raise RequestError(f"{name} is not in a supported image format; expected {SUPPORTED}")
    if kind not in FORMATS:
        article = "an" if kind in ("AVIF", "ICO", "SVG") else "a"
        raise RequestError(f"{name} is {article} {kind} file, which is not supported; convert it to PNG or JPEG")
    if kind == "BMP" and len(data) >= 34:
        n_header, compression = struct.unpack_from("<I", data, 14)[0], struct.unpack_from("<I", data, 30)[0]
        if n_header != 12 and compression in _RUN_LENGTHS:  # a 12-byte header (OS/2) has no such field
            raise RequestError(
                f"{name} is a BMP file with RLE compression, which is not supported; convert it to PNG or JPEG"
            )
    return kind


def _kind(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "video")
    for first, kind in _FIRST_BYTES:
        if data.startswith(first):
            return kind
    begin = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if begin.startswith(b"<svg") or (begin.startswith((b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in begin):
        return "SVG"
    return "HTML" if begin.startswith((b"<!doctype html", b"<html")) else None


def webp_size(data: bytes, name: str) -> tuple[int, int]:
    """Return width and height from the header of a WebP file."""
    try:
        kind = data[12:16]
        if kind == b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        if kind == b"VP8L":
            bits = struct.unpack_from("<I", data, 21)[0]
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
    except struct.error:
        pass
    raise RequestError(f"{name} is a damaged WebP file (no header); export it again, or send another file")
