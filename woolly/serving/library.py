"""The Library: the models that clients may ask for, as the headers of their files tell them. Nothing is loaded."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from woolly.errors import WoollyError
from woolly.gguf import open_gguf
from woolly.serving.errors import ApiError
from woolly.serving.logs import log
from woolly.store import CATALOGUE, resolve

__all__ = ["Library", "ModelInfo", "name_taken", "same_file"]

_LATER_SHARD = re.compile(r"-(?!00001)[0-9]{5}-of-[0-9]{5}$")
_FIRST_SHARD = re.compile(r"-00001-of-[0-9]{5}$")
_MAX_METADATA_TEXT = 2000


@dataclass(frozen=True)
class ModelInfo:
    """A model as its file's header tells it; nothing of it need be loaded."""

    name: str
    path: Path
    description: str
    size_bytes: int
    parameters: int  # weights
    architecture: str
    context_length: int  # of the model; where it is loaded, what one request may take
    n_ctx_train: int  # of the model
    capabilities: tuple[str, ...]  # completion, and chat and tools where the file brings a template for them
    created: int  # seconds since 1970, of the file
    aliases: tuple[str, ...] = ()  # further names that mean it: its file's, and those of the catalogue
    state: str = "unloaded"  # unloaded, loading, ready, unloading
    metadata: Mapping[str, Any] = field(default_factory=dict)  # general.* of the file

    @property
    def loaded(self) -> bool:
        """Whether it answers at once."""
        return self.state == "ready"


class Library:
    """GGUF files of one folder, and one that the operator named. Thread-safe; reads headers once per file."""

    def __init__(self, folder: Path, main: str | None = None, alias: str | None = None) -> None:
        """`main` may lie anywhere: the operator chose it. All else is confined to the folder."""
        self._folder = folder
        self.main: str | None = None
        self._main_path: Path | None = None
        if main is not None:
            self._main_path = resolve(main)
            self.main = alias or _name_of(self._main_path)
        self._cache: dict[tuple[Path, int, int], ModelInfo] = {}
        self._bad: set[tuple[Path, int, int]] = set()
        self._lock = threading.Lock()

    def list(self) -> list[ModelInfo]:
        """All models by name, the operator's first; files that are no models are left out."""
        found = {}
        for name, path in self._paths().items():
            try:
                found[name] = self._read(name, path)
            except (WoollyError, OSError):
                continue
        return list(found.values())

    def find(self, name: str) -> ModelInfo:
        """A model by its name, its file's name, or its name in the catalogue. ApiError 404 otherwise."""
        paths = self._paths()
        key = _key(name, paths)
        if key is None:
            names = (" = ".join((name, *_aliases(name, path))) for name, path in sorted(paths.items()))
            known = ", ".join(names) or "none"
            raise ApiError(
                404,
                "model_not_found",
                f"there is no model named {name[:200]!r}; known: {known}",
                param="model",
                suggestion="ask for one of the models that are listed",
            )
        return self._checked(key, paths[key])

    def at(self, path: str) -> ModelInfo:
        """A model by its path within the folder. ApiError 403 for a path that leads out of it.

        ApiError 409 for a file whose name is that of another model, which it would be taken for.
        """
        inside = not Path(path).is_absolute() and ".." not in Path(path).parts and "\0" not in path
        if not inside or not self._is_confined(self._folder / path):
            raise ApiError(
                403,
                "access_denied",
                "the path leads out of the model folder; give one that is relative to it",
                param="path",
            )
        file = self._folder / path
        if file.suffix != ".gguf" or not _is_file(file):
            raise ApiError(404, "model_not_found", "there is no GGUF file at this path of the folder", param="path")
        is_main = self._main_path is not None and same_file(file, self._main_path)
        name = self.main if is_main and self.main else _name_of(file)
        known = self._paths().get(name)
        if known is not None and not same_file(known, file):
            raise name_taken(name)
        return self._checked(name, file)

    def _checked(self, name: str, path: Path) -> ModelInfo:
        try:
            return self._read(name, path)
        except (WoollyError, OSError) as error:
            log.warning("model cannot be read", extra={"model": name, "reason": str(error)})
            message = str(error).replace(str(path), path.name)
            raise ApiError(422, "invalid_model", message, param="model") from None

    def _paths(self) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        if self.main is not None and self._main_path is not None:
            paths[self.main] = self._main_path
        try:
            files = sorted(self._folder.glob("*.gguf"))
        except OSError:
            files = []
        for file in files:
            if _LATER_SHARD.search(file.stem) or not self._is_confined(file) or not _is_file(file):
                continue
            if self._main_path is None or not same_file(file, self._main_path):
                paths.setdefault(_name_of(file), file)
        return paths

    def _is_confined(self, path: Path) -> bool:
        """Whether a path lies in the folder when every link on the way is followed."""
        try:
            return path.resolve().is_relative_to(self._folder.resolve())
        except (OSError, RuntimeError, ValueError):  # loops, names that are too long
            return False

    def _read(self, name: str, path: Path) -> ModelInfo:
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key in self._bad:
                raise WoollyError(f"{path}: the file cannot be read as a model")
            info = self._cache.get(key)
        if info is None:
            try:
                info = _read_header(path, int(status.st_mtime))
            except WoollyError:
                with self._lock:
                    self._bad.add(key)
                raise
            with self._lock:
                self._cache[key] = info
        return replace(info, name=name, aliases=_aliases(name, path))


def name_taken(name: str) -> ApiError:
    """What is told of a file that would be known by another's name."""
    return ApiError(
        409,
        "name_taken",
        f"the name {name!r} belongs to a file at another path; rename one of the two files",
        param="path",
    )


def _read_header(path: Path, created: int) -> ModelInfo:
    with open_gguf(path) as file:
        metadata = file.metadata
        architecture = str(metadata.get("general.architecture", "unknown"))
        template = metadata.get("tokenizer.chat_template")
        capabilities = ["completion"]
        if isinstance(template, str):
            capabilities.append("chat")
            if "tools" in template or "tokenizer.chat_template.tool_use" in metadata:
                capabilities.append("tools")
        n_ctx = metadata.get(f"{architecture}.context_length", 0)
        general = {
            key: value[:_MAX_METADATA_TEXT] if isinstance(value, str) else value
            for key in metadata
            if key.startswith("general.") and isinstance(value := metadata[key], (str, int, float, bool))
        }
        return ModelInfo(
            name=_name_of(path),
            path=path,
            description=str(metadata.get("general.name", path.stem))[:_MAX_METADATA_TEXT],
            size_bytes=file.n_bytes,
            parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            architecture=architecture,
            context_length=n_ctx if isinstance(n_ctx, int) else 0,
            n_ctx_train=n_ctx if isinstance(n_ctx, int) else 0,
            capabilities=tuple(capabilities),
            created=created,
            metadata=MappingProxyType(general),
        )


def _name_of(path: Path) -> str:
    return _FIRST_SHARD.sub("", path.stem)


def _aliases(name: str, path: Path) -> tuple[str, ...]:
    """What else a model of this name may be called: as its file with and without the ending, or as in the catalogue."""
    listed = (m for m in CATALOGUE.values() if m.file_name == path.name)
    names = (_name_of(path), path.name, *(known for model in listed for known in (model.name, *model.aliases)))
    return tuple(dict.fromkeys(other for other in names if other != name))


def _key(name: str, paths: Mapping[str, Path]) -> str | None:
    """Which of the models a name means, by its own name before any alias; of aliases, any case will do."""
    if name in paths:
        return name
    wanted = name.lower()
    return next((key for key, path in paths.items() if wanted in map(str.lower, _aliases(key, path))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def same_file(a: Path, b: Path) -> bool:
    """Whether two paths lead to one file."""
    try:
        return a.samefile(b)
    except OSError:
        return False
