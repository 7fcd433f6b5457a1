"""The ModelCatalog: the models that clients may use, described by the headers of their files. It loads none."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from woolly import _native
from woolly.engine import affordable_ctx
from woolly.errors import StoreError, WoollyError
from woolly.gguf import GGUFFile, open_gguf
from woolly.gguf.main_type import main_type
from woolly.models import trace
from woolly.plan import Plan
from woolly.serving.accounts.account import is_model_allowed
from woolly.serving.errors import ApiError
from woolly.serving.observability.logs import log
from woolly.store import Preset, find_preset, is_companion, own_names, quant_of, resolve
from woolly.store.file_formats import find_files

# token_embedding: a vector for each token, of a model whose file names no pooling.
Kind = Literal["completion", "embedding", "rerank", "transcription"]
Capability = Kind | Literal["chat", "tools", "token_embedding", "classify"]

_LATER_SHARD = re.compile(r"-(?!00001)[0-9]{5}-of-[0-9]{5}$")
_MAX_METADATA_TEXT = 2000
_MAX_LISTED = 10  # files in a line of the log


@dataclass(frozen=True)
class ModelInfo:
    """A model, described by the header of its file."""

    name: str
    path: Path
    description: str
    size_bytes: int
    parameters: int  # weights
    quantization: str | None  # by the file's name, or the type that most of its bytes have
    architecture: str
    context_length: int  # of one request, as the model is loaded or would be
    n_ctx_train: int  # of the model
    token_bytes: float  # bytes per token of an f16 cache
    capabilities: tuple[Capability, ...]  # chat and tools, if the file has a template for them
    created: int  # seconds since 1970, of the file
    aliases: tuple[str, ...] = ()  # further names: that of its file, and those of the catalogue
    given_names: tuple[str, ...] = ()  # those of --alias
    tags: tuple[str, ...] = ()
    unsupported: str | None = None  # why it cannot be run
    state: str = "unloaded"  # unloaded, loading, ready, unloading
    stage: str | None = None  # of loading: waiting, reading, freeing, opening
    progress: float | None = None  # the share of the weights that a GPU has, until it has all
    metadata: Mapping[str, Any] = field(default_factory=dict)  # general.* of the file
    base: str | None = None  # the model that a derived model stands for
    loading: Preset | None = None  # the derived model whose loading settings it has

    @property
    def loaded(self) -> bool:
        """True if requests need not wait for the model to load."""
        return self.state == "ready"

    def has_name(self, name: str) -> bool:
        """Return True if a name is one of this model's, in any case, with or without Ollama's tag `:latest`."""
        wanted = name.lower()
        return any(own.lower() in (wanted, wanted.removesuffix(":latest")) for own in (self.name, *self.aliases))

    @property
    def transcribes(self) -> bool:
        """True for speech-to-text models (Whisper, Parakeet)."""
        return "transcription" in self.capabilities

    @property
    def kind(self) -> Kind:
        """Kind of the model: text generation, embedding, reranking or speech recognition."""
        if self.transcribes:
            return "transcription"
        if {"embedding", "token_embedding"} & set(self.capabilities):
            return "embedding"
        return "rerank" if "classify" in self.capabilities else "completion"


class ModelCatalog:
    """GGUF files of one folder, with those of the hub in it, and the one of --model.

    Thread-safe; reads the header of a file once.
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
        """`main` may be anywhere, because the operator chose it. All others are confined to the folder.

        With `follows_links`, links in the folder may lead out of it: the operator made them.

        `alias` are names of `main`, of which the first by the alphabet is shown, as llama-server does; `tags` are words
        about it. `ctx` is the context that models are opened with, None or 0 for that of their presets.
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
        self._bad: dict[tuple[Path, int, int], str] = {}  # and why
        self._lock = threading.Lock()
        self._log_skipped()

    def list(self) -> list[ModelInfo]:
        """Return all models by name, that of --model first; leaves out files that are not models."""
        found = {}
        for name, path in self._paths().items():
            try:
                found[name] = self._read(name, path)
            except (WoollyError, OSError):
                continue
        return list(found.values())

    def find(self, name: str) -> ModelInfo:
        """Return a model by its name, its file's name, or its name in the catalogue. ApiError 404 if there is none."""
        paths = self._paths()
        key = self._key(name, paths)
        if key is None:
            wanted = name.lower().removesuffix(":latest").removesuffix(".gguf")
            if any(link.stem.lower() == wanted for link in self._links_out()):
                raise ApiError(
                    404,
                    "model_not_found",
                    f"{name[:200]!r} is a link that leads out of the models folder",
                    param="model",
                    suggestion="the operator can move the file into the folder, or start with --models-follow-links",
                )
            names = ((name, *self._aliases(name, path)) for name, path in sorted(paths.items()))
            known = ", ".join(" = ".join(one) for one in names if is_model_allowed(one)) or "none"
            raise ApiError(
                404,
                "model_not_found",
                f"there is no model named {name[:200]!r}; known: {known}",
                param="model",
                suggestion="ask for one of the models that are listed",
            )
        return self._checked(key, paths[key])

    def by_path(self, path: str) -> ModelInfo:
        """Return a model by its path within the folder. ApiError 403 for a path that leads out of the folder.

        ApiError 409 for a file that has the name of another model.
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
        if file.suffix not in (".gguf", ".bin") or not _is_file(file):
            raise ApiError(404, "model_not_found", "there is no GGUF file at this path of the folder", param="path")
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
        """Return the files of the folder, and those that `woolly pull` puts into its folder `hf`."""
        try:
            return [file for place in ("", "hf/*/*/**/") for file in sorted(find_files(self._folder, place))]
        except OSError:
            return []

    def _log_skipped(self) -> None:
        """Says once which files are not served: no GGUF files, and links, which could show any file of the machine."""
        if links := self._links_out():
            reason = "links that lead out of the models folder are not served: move the files in, give one with -m, or"
            reason += " start with --models-follow-links"
            log.warning("models skipped", extra={**_named(links), "reason": reason})
        if others := [file for file in self._files() if self._is_confined(file) and not _begins_as_gguf(file)]:
            log.warning("models skipped", extra={**_named(others), "reason": "these are not GGUF files"})

    def _links_out(self) -> Sequence[Path]:
        """Return the links of the folder that are not followed."""
        return [file for file in self._files() if file.is_symlink() and not self._is_confined(file)]

    def _names(self, path: Path) -> Sequence[str]:
        """Return the names of a file, the one that is shown first: the operator's, then as `woolly list` has them."""
        given = self._main_names if path == self._main_path else ()
        hub = self._folder / "hf"
        folder, more = path.parent, []
        if path.is_relative_to(hub):
            folder = self._folder
            repo, quant = "/".join(path.relative_to(hub).parts[:2]), quant_of(path.name)
            more = [f"{repo}:{quant}"] if quant else []  # as llama-server and Ollama name files of the hub
        return list(dict.fromkeys((*given, *(_readable(name) for name in (*own_names(folder, path), *more)))))

    def _aliases(self, name: str, path: Path) -> tuple[str, ...]:
        return tuple(other for other in self._names(path) if other != name)

    def _is_confined(self, path: Path) -> bool:
        """Return True if a path stays in the folder after links are resolved, or if links may leave it."""
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
                info = _read_header(path, int(status.st_mtime))
            except OSError:
                raise
            except Exception as error:  # a hostile header must not break the list of all others
                is_told = isinstance(error, WoollyError)
                told = str(error) if is_told else f"{path}: the file cannot be read as a model"
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
        """Return the context that the model would be loaded with."""
        preset = None
        with suppress(StoreError):  # an invalid presets file is rejected when the model is used
            preset = find_preset(info.path)
        wanted = self._ctx or (preset and preset.ctx)
        return wanted or affordable_ctx(info.n_ctx_train, info.token_bytes, info.size_bytes)

    def _key(self, name: str, paths: Mapping[str, Path]) -> str | None:
        """Return the model that a name means: its own name first, then its name or an alias in any case."""
        if name in paths:
            return name
        wanted = name.lower()
        return next((key for key, path in paths.items() if wanted in map(str.lower, (key, *self._names(path)))), None)


def _named(files: Sequence[Path]) -> dict[str, Any]:
    """Return the text about files for the log: their number, and the first names."""
    shown = ", ".join(_readable(file.name) for file in files[:_MAX_LISTED])
    return {"count": len(files), "names": shown + (", ..." if len(files) > _MAX_LISTED else "")}


def _begins_as_gguf(path: Path) -> bool:
    """Return True if a file begins like a GGUF file, or cannot be read: a request for it reports the reason."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"GGUF", b"lmgg")
    except OSError:
        return True


def name_taken(name: str) -> ApiError:
    """Return the error for a file that has the name of another model."""
    return ApiError(
        409,
        "name_taken",
        f"the name {name!r} belongs to a file at another path; rename one of the two files",
        param="path",
    )


def _read_header(path: Path, created: int) -> ModelInfo:
    with open_gguf(path) as file:
        metadata = file.metadata
        architecture = _readable(str(metadata.get("general.architecture", "unknown")))
        template = metadata.get("tokenizer.chat_template")
        plan = _plan_of(file)
        has_tools = "tools" in str(template) or "tokenizer.chat_template.tool_use" in metadata
        n_ctx = metadata.get(f"{architecture}.context_length", 0)
        if isinstance(plan, Plan) and plan.positions is not None and isinstance(n_ctx, int):
            n_ctx = min(n_ctx, plan.positions)
        general = {
            _readable(key): _readable(value[:_MAX_METADATA_TEXT]) if isinstance(value, str) else value
            for key in metadata
            if key.startswith("general.") and isinstance(value := metadata[key], (str, int, float, bool))
        }
        return ModelInfo(
            name=_readable(path.stem),
            path=path,
            description=_readable(str(metadata.get("general.name", path.stem))[:_MAX_METADATA_TEXT]),
            size_bytes=file.n_bytes,
            parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
            quantization=quant_of(path.name) or main_type(file),
            architecture=architecture,
            context_length=n_ctx if isinstance(n_ctx, int) else 0,
            n_ctx_train=n_ctx if isinstance(n_ctx, int) else 0,
            token_bytes=0.0 if isinstance(plan, str) else plan.bytes_per_token(_native.kv_value_bytes("f16")),
            capabilities=_capabilities(plan, isinstance(template, str), has_tools),
            created=created,
            unsupported=plan if isinstance(plan, str) else None,
            metadata=MappingProxyType(general),
        )


def _plan_of(file: GGUFFile) -> Plan | str:
    """Return the plan of a model, which computes nothing, or why it cannot be run."""
    try:
        return trace(file)
    except WoollyError as error:
        return _readable(str(error)).removeprefix(f"{file.path}: ").partition("; supported:")[0]
    except Exception as error:  # a header that no check expected must not break the list of all others
        log.warning("model cannot be traced", extra={"model": file.path.name, "reason": repr(error)}, exc_info=error)
        return "the header has values that no model of its architecture can have"


def _capabilities(plan: Plan | str, has_template: bool, has_tools: bool) -> tuple[Capability, ...]:
    """Return the capabilities of a model."""
    if isinstance(plan, str):
        return ()
    if plan.transcribes:
        return ("transcription",)
    if plan.result == "embeddings":
        return ("token_embedding",) if plan.pooling == "none" else ("embedding",)
    if plan.result == "scores":
        ranks = plan.width == 1 or "yes" in map(str.lower, plan.labels)
        return ("rerank", "classify") if ranks else ("classify",)
    if not has_template:
        return ("completion",)
    return ("completion", "chat", "tools") if has_tools else ("completion", "chat")


def _readable(text: str) -> str:
    """Return text with U+FFFD for bytes that are not UTF-8, which JSON cannot represent."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def same_file(a: Path, b: Path) -> bool:
    """Return True if two paths are the same file."""
    try:
        return a.samefile(b)
    except OSError:
        return False
