"""Senses: whether a model takes the images and audio that come with a prompt, before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from woolly.errors import RequestError, StoreError
from woolly.store import WHEEL_MODELS, resolve


def check_files(images: Sequence[str], audio: Sequence[str]) -> None:
    """RequestError, as the one who reads it would raise, for a file that is not there."""
    for kind, files in (("image", images), ("audio file", audio)):
        for file in files:
            try:
                Path(file).expanduser().stat()  # not open: a pipe can be opened once
            except (OSError, ValueError, RuntimeError) as error:  # ValueError: a NUL; RuntimeError: no home
                reason = getattr(error, "strerror", None) or error
                raise RequestError(f"the {kind} {file} cannot be read ({reason})") from None


def find_projector(
    name: str, images: Sequence[str], audio: Sequence[str], mmproj: str | Path | None
) -> str | Path | None:
    """Returns the projector to open with a model: the given one, or the one beside it; None if text is all it needs.

    RequestError if no projector for the images or audio is known. A model that is not
    here is left to those who fetch it, but for the default one, which only reads text.
    """
    from woolly.chat.media import without_projector
    from woolly.llm.projector import choose_projector
    from woolly.multimodal.pdf import is_pdf

    sees = not all(is_pdf(image) for image in images)
    if mmproj not in (None, "none") or not (sees or audio):
        return mmproj  # opening says what it lacks
    try:
        found = choose_projector(resolve(name), mmproj)
    except StoreError:
        if name not in WHEEL_MODELS:
            return mmproj
        found = None
    if found is None:
        raise RequestError(without_projector("audio" if audio else "image", name))
    return found
