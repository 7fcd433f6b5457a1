"""From what a person typed to the model file that is meant."""

from __future__ import annotations

import os
from pathlib import Path

from woolly.errors import StoreError
from woolly.store.catalogue import lookup, suggestion
from woolly.store.checksum import is_intact
from woolly.store.folder import models_folder

__all__ = ["resolve"]


def resolve(spec: str | os.PathLike[str]) -> Path:
    """Return the path of a GGUF file: an existing file as it is, or a catalogue name that was pulled."""
    text = os.fspath(spec)
    path = Path(text)
    try:
        if path.is_file():
            return path
        model = lookup(text)
        if model is not None:
            target = models_folder() / model.file_name
            if is_intact(target, model):
                return target
            state = "is damaged" if target.exists() else "is not here yet"
            raise StoreError(f"the model {model.name} {state}: run `woolly pull {model.name}`")
        if text and path.is_dir():
            raise StoreError(f"{text} is a folder: give the path of a GGUF file in it")
    except OSError as error:
        raise StoreError(
            f"{text} cannot be read ({error.strerror or error}): give the path of a GGUF file that can be"
        ) from error
    raise StoreError(
        f"there is no file and no model named {text!r}: give the path of a GGUF file or the name of a model "
        f"({suggestion(text)})"
    )
