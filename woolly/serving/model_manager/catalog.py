"""Catalog of available models, described by the headers of their files. The catalog loads no weights."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.engine import affordable_ctx
from woolly.errors import StoreError, WoollyError
from woolly.serving.accounts.account import is_model_allowed
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.model_info import ModelInfo, read_header, readable
from woolly.serving.observability.logs import log
from woolly.store import find_in_catalogue, find_preset, is_companion, pulled_names, quant_of, resolve
from woolly.store.catalogue.spelling import normalize_name
from woolly.store.file_formats import find_files

_LATER_SHARD = re.compile(r"-(?!00001)[0-9]{5}-of-[0-9]{5}$")
_MAX_LISTED = 10  # file names per log line


class ModelCatalog:
    """GGUF files of the models folder, including downloads from the hub, and the file of --model.

    Thread-safe. The header of each file is read once.
    """

    def __init__(
        self,
        folder: Path,
        main: str | None = None,
        alias: Sequence[str] = (),
        ctx: int | None = None,
        tags: Sequence[str] = (),
        follows_links: bool = False,
    ) -> None:
        """`main` may be anywhere, because the administrator chose it. All other files must be in the folder.

        With `follows_links`, symbolic links may lead out of the folder, because the administrator created them. `alias`
        are names of `main`; as in llama-server, the alphabetically first name is shown. `tags` describe `main`. `ctx`
        is the context size for loading; None or 0 selects the preset's.
        """
        self._main_names = tuple(sorted(alias))
        self._main_tags = tuple(tags)
        self._folder = folder
        self._ctx = ctx
        self._follows_links = follows_links
        self.main: str | None = None
        self._main_path: Path | None = None
        if main is not None:
            self._main_path = resolve(main)
            self.main = self._names(self._main_path)[0]
        self._cache: dict[tuple[Path, int, int], ModelInfo] = {}
        self._bad: dict[tuple[Path, int, int], str] = {}  # reason by file
        self._lock = threading.Lock()
        self._log_skipped()

    def list(self) -> list[ModelInfo]:
        """Return all models sorted by name, with --model first. Invalid files are skipped."""
        found = {}
        for name, path in self._paths().items():
            try:
                found[name] = self._read(name, path)
            except (WoollyError, OSError):
                continue
        return list(found.values())

    def find(self, name: str) -> ModelInfo:
        """Return a model by its name, file name or catalogue name. Raises ApiError 404 for an unknown name."""
        paths = self._paths()
        key = self._key(name, paths)
        if key is None:
            wanted = name.lower().removesuffix(":latest").removesuffix(".gguf")
            if any(link.stem.lower() == wanted for link in self._links_out()):
                raise ApiError(
                    404,
                    "model_not_found",
                    f"{name[:200]!r} is a symbolic link that leads out of the models folder",
                    param="model",
                    suggestion="move the file into the folder, or start the server with --models-follow-links",
                )
            names = ((name, *self._aliases(name, path)) for name, path in sorted(paths.items()))
            known = ", ".join(" = ".join(one) for one in names if is_model_allowed(one)) or "none"
            raise ApiError(
                404,
                "model_not_found",
                f"unknown model {name[:200]!r}; available: {known}",
                param="model",
            )
        return self._checked(key, paths[key])

    def by_path(self, path: str) -> ModelInfo:
        """Return a model by its path in the folder. Raises ApiError 403 for a path outside of the folder.

        Raises ApiError 409 for a file with the name of another model.
        """
        inside = not Path(path).is_absolute() and ".." not in Path(path).parts and "\0" not in path
        if not inside or not self._is_confined(self._folder / path):
            raise ApiError(
                403,
                "access_denied",
                "the path leads out of the models folder; use a path relative to it",
                param="path",
            )
        file = self._folder / path
        if file.suffix not in (".gguf", ".bin") or not _is_file(file):
            raise ApiError(404, "model_not_found", "no GGUF file at this path of the models folder", param="path")
        is_main = self._main_path is not None and same_file(file, self._main_path)
        name = self.main if is_main and self.main else self._names(file)[0]
        known = self._paths().get(name)
        if known is not None and not same_file(known, file):
            raise name_taken(name)
        return self._checked(name, file)

    def _checked(self, name: str, path: Path) -> ModelInfo:
        try:
            return self._read(name, path)
        except (WoollyError, OSError) as error:
            message = str(error).replace(str(path), path.name)
            raise ApiError(422, "invalid_model", message, param="model") from None

    def _paths(self) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        if self.main is not None and self._main_path is not None:
            paths[self.main] = self._main_path
        for file in self._files():
            if _LATER_SHARD.search(file.stem) or is_companion(file.name):
                continue
            if not self._is_confined(file) or not _is_file(file):
                continue
            if self._main_path is None or not same_file(file, self._main_path):
                paths.setdefault(self._names(file)[0], file)
        return paths

    def _files(self) -> Sequence[Path]:
        """Return the files of the folder and of its subfolder `hf` for downloads."""
        try:
            return [file for place in ("", "hf/*/*/**/") for file in sorted(find_files(self._folder, place))]
        except OSError:
            return []

    def _log_skipped(self) -> None:
        """Log the files that are not served: other file types, and links, which could expose any file."""
        if links := self._links_out():
            reason = "links that lead out of the models folder are not served: move the files into it, use -m, or"
            reason += " start with --models-follow-links"
            log.warning("models skipped", extra={**_named(links), "reason": reason})
        if others := [file for file in self._files() if self._is_confined(file) and not _has_gguf_magic(file)]:
            log.warning("models skipped", extra={**_named(others), "reason": "these are not GGUF files"})

    def _links_out(self) -> Sequence[Path]:
        """Return the symbolic links that are not followed."""
        return [file for file in self._files() if file.is_symlink() and not self._is_confined(file)]

    def _names(self, path: Path) -> Sequence[str]:
        """Return the names of a file, in order of preference: --alias first, then the names of `woolly list`."""
        given = self._main_names if path == self._main_path else ()
        hub = self._folder / "hf"
        folder, more = path.parent, []
        if path.is_relative_to(hub):
            folder = self._folder
            repo, quant = "/".join(path.relative_to(hub).parts[:2]), quant_of(path.name)
            more = [f"{repo}:{quant}"] if quant else []  # llama-server's and Ollama's name for files of the hub
        return list(dict.fromkeys((*given, *(readable(name) for name in (*pulled_names(folder, path), *more)))))

    def _aliases(self, name: str, path: Path) -> tuple[str, ...]:
        return tuple(other for other in self._names(path) if other != name)

    def _is_confined(self, path: Path) -> bool:
        """Return True if a resolved path is in the folder, or if links may lead out of it."""
        if self._follows_links:
            return True
        try:
            return path.resolve().is_relative_to(self._folder.resolve())
        except (OSError, RuntimeError, ValueError):  # loops, names that are too long
            return False

    def _read(self, name: str, path: Path) -> ModelInfo:
        status = path.stat()
        key = (path, status.st_mtime_ns, status.st_size)
        with self._lock:
            if (told := self._bad.get(key)) is not None:
                raise WoollyError(told)
            info = self._cache.get(key)
        if info is None:
            try:
                info = read_header(path, int(status.st_mtime))
            except OSError:
                raise
            except Exception as error:  # an invalid header must not break the list of other models
                is_told = isinstance(error, WoollyError)
                told = str(error) if is_told else f"{path}: not a valid model file"
                with self._lock:
                    self._bad[key] = told
                log.warning("model cannot be read", extra={"model": name, "reason": told if is_told else repr(error)})
                raise WoollyError(told) from error
            with self._lock:
                self._cache[key] = info
        is_main = name == self.main
        return replace(
            info,
            name=name,
            aliases=self._aliases(name, path),
            given_names=self._main_names if is_main else (),
            tags=self._main_tags if is_main else (),
            context_length=self._context(info),
        )

    def _context(self, info: ModelInfo) -> int:
        """Return the context size that the model would be loaded with."""
        preset = None
        with suppress(StoreError):  # an invalid presets file is reported when the model is used
            preset = find_preset(info.path)
        wanted = self._ctx or (preset and preset.ctx)
        return wanted or affordable_ctx(info.n_ctx_train, info.token_bytes, info.size_bytes)

    def _key(self, name: str, paths: Mapping[str, Path]) -> str | None:
        """Return the key of a name: an exact match, else a name or alias that differs only in case, else in spelling.

        The other spelling, such as `qwen3:30b-a3b` for `qwen3:30b`, must fit one model only.
        """
        if name in paths:
            return name
        names = {key: (key, *self._names(path)) for key, path in paths.items()}
        wanted = name.lower()
        if (key := next((key for key, own in names.items() if wanted in map(str.lower, own)), None)) is not None:
            return key
        spelled = {normalize_name(name)}
        with suppress(StoreError):  # an unknown size of a known family
            if (entry := find_in_catalogue(name)) is not None:
                spelled.add(normalize_name(entry.name))
        meant = [key for key, own in names.items() if spelled & set(map(normalize_name, own))]
        return meant[0] if len(meant) == 1 else None


def _named(files: Sequence[Path]) -> dict[str, Any]:
    """Return log fields for files: their number and first names."""
    shown = ", ".join(readable(file.name) for file in files[:_MAX_LISTED])
    return {"count": len(files), "names": shown + (", ..." if len(files) > _MAX_LISTED else "")}


def _has_gguf_magic(path: Path) -> bool:
    """Return True if a file begins like a GGUF file or is unreadable; using an unreadable file gives the reason."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"GGUF", b"lmgg")
    except OSError:
        return True


def name_taken(name: str) -> ApiError:
    """Return the error for a file with the name of another model."""
    return ApiError(
        409,
        "name_taken",
        f"the name {name!r} is used by another file; rename one of the two files",
        param="path",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # name too long
        return False


def same_file(a: Path, b: Path) -> bool:
    """Return True if two paths refer to the same file."""
    try:
        return a.samefile(b)
    except OSError:
        return False
