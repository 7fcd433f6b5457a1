"""Selection of a model's projector file, and information from its header."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from woolly import multimodal
from woolly.errors import GGUFError, ModelError, StoreError, UnsupportedError, WoollyError
from woolly.gguf import open_gguf
from woolly.multimodal import encoder
from woolly.store import find_projectors, resolve

log = logging.getLogger("woolly.llm")


@dataclass(frozen=True)
class ProjectorFile:
    """Information from the header of a projector file."""

    path: Path
    n_bytes: int
    settings: multimodal.ProjectorSettings | None  # None if the projector is unusable
    reason: str = ""  # reason why the projector is unusable

    @property
    def kind(self) -> str:
        """Projector family, as in `clip.projector_type`; "unknown" if the projector is unusable."""
        return "unknown" if self.settings is None else self.settings.kinds

    @property
    def takes(self) -> list[str]:
        """Input modalities besides text: image, audio."""
        projector = self.settings
        own = () if projector is None else (("image", projector.vision), ("audio", projector.audio))
        return [name for name, settings in own if settings is not None]


def choose_projector(model: Path, given: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the given projector file, or the file next to the model, or None if there is none.

    "none" selects no projector. Raise StoreError if the given file does not exist.
    """
    if given is not None:
        return None if given == "none" else _given(given)
    return next(iter(find_projectors(model)), None)


def describe_projector(model: Path, given: str | os.PathLike[str] | None = None) -> ProjectorFile | None:
    """Return the header of the projector that would be used with a model; None if there is none."""
    path = choose_projector(model, given)
    if path is None:
        return None
    try:
        with open_gguf(path) as file:
            return ProjectorFile(path, file.n_bytes, multimodal.read_projector(file.metadata))
    except (WoollyError, OSError) as error:
        return ProjectorFile(path, 0, None, str(error).removeprefix(f"{path}: "))


def usable_projector(model: Path, given: str | os.PathLike[str] | None, *, has_stages: bool = False) -> Path | None:
    """Return the projector to use with a model: the given file, a matching file next to the model, or None.

    An unusable projector next to the model is logged and ignored; the model then only supports text. Raise ModelError
    if the given file belongs to another model.
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
    """Raise ModelError if the row width of a projector does not match the model."""
    with open_gguf(projector) as file:
        width = max(tower.width for tower in encoder.trace_towers(file))
    with open_gguf(model) as file:
        own = file.metadata.get(f"{file.metadata.get('general.architecture')}.embedding_length")
    # Rows may contain several layers side by side.
    if isinstance(own, int) and own > 0 and width % own != 0:
        raise ModelError(
            f"{projector.name} has rows of width {width}, but {model.name} expects width {own}:"
            " they belong to different models"
        )


def _given(given: str | os.PathLike[str]) -> Path:
    path = Path(given).expanduser()
    if path.is_file():
        return path
    try:
        return resolve(given)
    except StoreError:
        raise StoreError(f"projector {os.fspath(given)} not found; pass the path of an mmproj file") from None
