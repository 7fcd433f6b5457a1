"""Projector file of a model: how it is found, and its header."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from woolly import multimodal
from woolly.errors import GGUFError, ModelError, StoreError, UnsupportedError, WoollyError
from woolly.gguf import open_gguf
from woolly.models import towers
from woolly.store import find_projectors, resolve

log = logging.getLogger("woolly.llm")


@dataclass(frozen=True)
class ProjectorFile:
    """Facts of a projector file's header."""

    path: Path
    n_bytes: int
    settings: multimodal.ProjectorSettings | None  # None: it cannot be used
    reason: str = ""  # why not

    @property
    def kind(self) -> str:
        """The family, as `clip.projector_type` names it; "unknown" if it cannot be used."""
        return "unknown" if self.settings is None else self.settings.kinds

    @property
    def takes(self) -> list[str]:
        """Return the inputs of a model besides text: image, audio."""
        projector = self.settings
        own = () if projector is None else (("image", projector.vision), ("audio", projector.audio))
        return [name for name, settings in own if settings is not None]


def choose_projector(model: Path, given: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the projector's file: the given one, or the one next to the model; None if there is none.

    `given` "none" means no projector; StoreError if a given file does not exist.
    """
    if given is not None:
        return None if given == "none" else _given(given)
    return next(iter(find_projectors(model)), None)


def describe_projector(model: Path, given: str | os.PathLike[str] | None = None) -> ProjectorFile | None:
    """Return the projector that a model would be opened with, read from its header; None if there is none."""
    path = choose_projector(model, given)
    if path is None:
        return None
    try:
        with open_gguf(path) as file:
            return ProjectorFile(path, file.n_bytes, multimodal.read_projector(file.metadata))
    except (WoollyError, OSError) as error:
        return ProjectorFile(path, 0, None, str(error).removeprefix(f"{path}: "))


def usable_projector(model: Path, given: str | os.PathLike[str] | None, *, has_stages: bool = False) -> Path | None:
    """Return the projector to open with a model: the given one, or a matching one next to it; None: neither.

    A projector found next to the model that cannot be used is logged and ignored: the model then takes text only.
    ModelError with both names if the given one belongs to another model.
    """
    path = choose_projector(model, given)
    if path is None or (given is None and has_stages):
        return None
    try:
        check_pair(model, path)
    except (GGUFError, ModelError, UnsupportedError) as error:
        if given is not None:
            raise
        log.warning("%s is not used, so the model does not support images: %s", path.name, error)
        return None
    return path


def check_pair(model: Path, projector: Path) -> None:
    """ModelError with both names if the rows of a projector are not as wide as those of the model."""
    with open_gguf(projector) as file:
        width = max(tower.width for tower in towers.trace_towers(file))
    with open_gguf(model) as file:
        own = file.metadata.get(f"{file.metadata.get('general.architecture')}.embedding_length")
    # Rows for several layers are side by side.
    if isinstance(own, int) and own > 0 and width % own != 0:
        raise ModelError(
            f"{projector.name} makes rows of {width} numbers, but {model.name} reads rows of {own}:"
            " they belong to different models"
        )


def _given(given: str | os.PathLike[str]) -> Path:
    path = Path(given).expanduser()
    if path.is_file():
        return path
    try:
        return resolve(given)
    except StoreError:
        raise StoreError(f"there is no projector {os.fspath(given)}; give the path of an mmproj file") from None
