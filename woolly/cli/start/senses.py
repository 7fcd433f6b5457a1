"""Senses: whether a model takes the pictures and sounds that come with a prompt, before anything is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from woolly.errors import RequestError, StoreError
from woolly.store import CATALOGUE, resolve

__all__ = ["check_senses"]


def check_senses(name: str, images: Sequence[str], sounds: Sequence[str], mmproj: str | Path | None) -> None:
    """RequestError if no projector is known by which the model would see the pictures or hear the sounds.

    A model that is not here is left to those who fetch it, but for the default one, which only reads text.
    """
    from woolly.llm.projector import describe_projector
    from woolly.senses.pdf import is_pdf

    if mmproj not in (None, "none"):
        return  # opening says what it lacks
    try:
        path = resolve(name)
    except StoreError:
        if name not in CATALOGUE:
            return
    else:
        if describe_projector(path, mmproj) is not None:
            return
    if sounds:
        raise RequestError(
            f"{name} hears no sounds: choose a model that does (whisper:base and parakeet write what is said), or give"
            " its projector by --mmproj"
        )
    if any(not is_pdf(image) for image in images):
        raise RequestError(f"{name} sees no pictures: choose a model that does, or give its projector by --mmproj")
