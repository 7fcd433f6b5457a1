"""Checks that a model supports a prompt's images and audio before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from woolly.errors import RequestError, StoreError
from woolly.store import WHEEL_MODELS, resolve


def check_files(images: Sequence[str], audio: Sequence[str]) -> None:
    """Raise RequestError for a missing file, with the same message as the reader."""
    for kind, files in (("image", images), ("audio file", audio)):
        for file in files:
            try:
                Path(file).expanduser().stat()  # not opened: a pipe can only be opened once
            except (OSError, ValueError, RuntimeError) as error:  # ValueError: NUL; RuntimeError: no home
                reason = getattr(error, "strerror", None) or error
                raise RequestError(f"the {kind} {file} cannot be read ({reason}); check its path") from None


def split_pdfs(images: Sequence[str], files: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the images followed by the PDF files of --file, and the other files of --file."""
    if not files:
        return tuple(images), ()
    from woolly.multimodal.pdf import is_pdf  # imported late: most prompts have no files

    pdfs = [file for file in files if file != "-" and is_pdf(file)]
    return (*images, *pdfs), tuple(file for file in files if file not in pdfs)


def find_projector(
    name: str, images: Sequence[str], audio: Sequence[str], mmproj: str | Path | None
) -> str | Path | None:
    """Return the projector for a model: as passed, or next to the model. None if only text is needed.

    Raises RequestError if there is no projector for the images or audio. Models that are not downloaded are not
    checked, except the included model, which only supports text.
    """
    from woolly.chat.media import without_projector
    from woolly.llm.projector import choose_projector
    from woolly.multimodal.pdf import is_pdf

    sees = not all(is_pdf(image) for image in images)
    if mmproj not in (None, "none") or not (sees or audio):
        return mmproj  # unsupported inputs are reported on opening
    try:
        found = choose_projector(resolve(name), mmproj)
    except StoreError:
        if name not in WHEEL_MODELS:
            return mmproj
        found = None
    if found is None:
        raise RequestError(without_projector("audio" if audio else "image", name))
    return found
