"""Image: RGB pixels decoded from a path, bytes or an array, with limits that are checked before decoding."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command
from woolly.multimodal.image_formats import FORMATS, MAX_BYTES, MAX_PIXELS, MAX_SIDE, detect_format, webp_size

ImageSource = Any  # a path, the bytes of a file, a PIL image, or a uint8 array [height, width, 3]

# Limits for progressive JPEG files, which may repeat scans of the complete image: ten scans are typical. Decoding 2e9
# pixels takes a few seconds.
_MAX_SCANS = 16
_MAX_SCANNED = 2_000_000_000

# Bounds concurrent decoding: the largest image takes 700 MB before conversion to RGB.
_DECODING = threading.BoundedSemaphore(2)


@dataclass(frozen=True, eq=False)
class Image:
    """Decoded image."""

    pixels: npt.NDArray[np.uint8] = field(repr=False)  # [height, width, 3]: red, green, blue
    note: str = ""  # ignored content, such as further frames of an animation

    @property
    def width(self) -> int:
        """Width in pixels."""
        return int(self.pixels.shape[1])

    @property
    def height(self) -> int:
        """Height in pixels."""
        return int(self.pixels.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.height, self.width

    @cached_property
    def digest(self) -> bytes:
        """Digest of size and pixels, equal for equal images in different formats."""
        hashed = hashlib.blake2b(f"{self.width}x{self.height} RGB".encode(), digest_size=32, person=b"woolly picture")
        hashed.update(np.ascontiguousarray(self.pixels).data)
        return hashed.digest()


def check_pillow() -> None:
    """Raise RequestError with the install command if Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise RequestError(f"images need the package pillow: {install_command('images')}") from None


def read_image(source: ImageSource, name: str = "the image") -> Image:
    """Return the image from a path, the bytes of a file, a PIL image or an array.

    As in transformers, EXIF orientation is applied, transparency becomes white, and only the first frame of an
    animation is used. Raise RequestError for unsupported, oversized or damaged images; the message begins with `name`.
    """
    if isinstance(source, Image):
        return source
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return _decode(_read_file(path), path.name)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(bytes(source), name)
    if isinstance(source, np.ndarray):
        return _from_array(source, name)
    images = sys.modules.get("PIL.Image")
    if images is not None and isinstance(source, images.Image):
        _check_size(source.width, source.height, name)
        return _decode_serially(lambda: _guarded(lambda: _convert(source, name), "PIL", name))
    kind = type(source).__name__
    raise RequestError(f"{name} is a {kind}; expected a path, bytes, a PIL image or a uint8 array")


def _read_file(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: NUL in path; RuntimeError: no home
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"cannot read image {path}: {reason}; check its path") from None
    return data


def _decode(data: bytes, name: str) -> Image:
    kind = detect_format(data, name)
    check_pillow()
    if kind == "WebP":  # the plugin allocates all pixels when opening a file
        _check_size(*webp_size(data, name), name)

    def decode() -> Image:
        # Use the plugin directly: Image.open warns above 89 megapixels and tries other formats.
        image = FORMATS[kind].plugin()(BytesIO(data))
        _check_size(image.width, image.height, name)
        if kind == "JPEG":
            _check_scans(data.count(b"\xff\xda"), image.width * image.height, name)
        return _convert(image, name)

    return _decode_serially(lambda: _guarded(decode, kind, name))


def _decode_serially(decode: Callable[[], Image]) -> Image:
    with _DECODING:
        return decode()


def _guarded(decode: Callable[[], Image], kind: str, name: str) -> Image:
    try:
        return decode()
    except RequestError:
        raise
    except MemoryError:
        raise RequestError(f"{name} does not fit into memory; send a smaller image") from None
    except Exception as error:  # Pillow's plugins raise various exceptions for damaged files
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise RequestError(
            f"{name} is a damaged {kind} file ({reason}); export it again, or send another file"
        ) from None


def _check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise RequestError(f"{name} has {width} x {height} pixels; expected at least one pixel")
    if width * height > MAX_PIXELS:
        most = MAX_PIXELS // 1_000_000
        raise RequestError(
            f"{name} has {width} x {height} pixels, but the limit is {most} million; send a smaller image",
            limit=MAX_PIXELS,
            given=width * height,
        )
    if max(width, height) > MAX_SIDE:
        raise RequestError(
            f"{name} has {width} x {height} pixels, but the limit per side is {MAX_SIDE}; send a smaller image",
            limit=MAX_SIDE,
            given=max(width, height),
        )


def _check_scans(n_scans: int, n_pixels: int, name: str) -> None:
    if n_scans > _MAX_SCANS and n_scans * n_pixels > _MAX_SCANNED:
        raise RequestError(
            f"{name} is a JPEG file with {n_scans} scans, which takes too long to decode; save it as PNG"
        )


def _convert(image: Any, name: str) -> Image:
    """Decode a PIL image to RGB."""
    from PIL import ImageOps

    note = f"{name} is an animation; only its first frame is used" if getattr(image, "is_animated", False) else ""
    image.load()
    turned = ImageOps.exif_transpose(image) if _is_turned(image) else image
    return Image(_rgb(turned), note)


def _is_turned(image: Any) -> bool:
    """True if EXIF data specify a rotation or reflection. Damaged EXIF data are ignored."""
    try:
        return int(image.getexif().get(0x0112, 1)) in range(2, 9)
    except Exception:
        return False


def _rgb(image: Any) -> npt.NDArray[np.uint8]:
    import PIL.Image

    if image.mode.startswith("I"):  # 16-bit grayscale: use the upper byte, as Pillow does for 16-bit colors
        grey = np.asarray(image).astype(np.int64) >> 8
        return np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2)
    has_alpha = "A" in image.getbands() or "a" in image.getbands() or image.info.get("transparency") is not None
    if has_alpha:
        image = image.convert("RGBA")
        white = PIL.Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = PIL.Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))


def _from_array(array: npt.NDArray[Any], name: str) -> Image:
    shape = " x ".join(map(str, array.shape))
    if array.dtype != np.uint8:
        raise RequestError(f"{name} is an array of {array.dtype}; expected uint8 from 0 to 255")
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise RequestError(f"{name} is an array of shape {shape}; expected height x width x 3")
    _check_size(array.shape[1], array.shape[0], name)
    if array.shape[2] == 1:
        return Image(np.repeat(array, 3, axis=2))
    if array.shape[2] == 4:
        check_pillow()
        import PIL.Image

        return Image(_rgb(PIL.Image.fromarray(np.ascontiguousarray(array), "RGBA")))
    return Image(np.array(array))  # a copy: the caller may modify the array
