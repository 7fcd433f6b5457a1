"""Files in requests: plain text becomes text, PDF stays a file."""

from __future__ import annotations

import base64
import binascii

from woolly.chat import FilePart, ImagePart, Part, TextPart, VideoPart
from woolly.multimodal.inputs import FileInput, ImageInput, VideoInput
from woolly.multimodal.pdf import is_pdf
from woolly.multimodal.video import is_video


def file_part(data: str, name: str, where: str) -> Part:
    """Return the part for a file in a data: URL: plain text with its name, or an unparsed PDF file."""
    if (text := file_text(data)) is not None:
        return TextPart("\n".join(one for one in (name, text) if one))
    return FilePart(FileInput(data=data, name=name, where=where))


def seen_part(plain: str, where: str) -> Part:
    """Return the part for base64 data: an image, PDF file or video, detected by its first bytes."""
    try:
        first = base64.b64decode(plain[:16], validate=True)
    except (binascii.Error, ValueError):
        first = b""  # the error is reported when the file is read
    if is_pdf(first):
        return FilePart(FileInput(data=plain, where=where))
    if is_video(first):
        return VideoPart(VideoInput(data=plain, where=where))
    return ImagePart(ImageInput(base64=plain, where=where))


def file_text(data: str) -> str | None:
    """Return the text of a data: URL with plain text, or None for other types."""
    head, comma, body = data.partition(",")
    if not (comma and head.startswith("data:text/")):
        return None
    try:
        return base64.b64decode(body, validate=True).decode() if head.endswith(";base64") else body
    except (binascii.Error, ValueError):
        return None
