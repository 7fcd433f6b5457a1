"""Models on the Hugging Face hub: `hf:org/repo`, `hf:org/repo:QUANT`, `hf:org/repo/file.gguf`.

Files of whisper.cpp (`ggml-*.bin`) are selected by name only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from woolly.errors import StoreError
from woolly.store.file_formats import FILE, find_files, is_companion, is_model_file, is_whisper_file
from woolly.store.model_folder import models_folder

# Preferred types if the name has none, most common first.
_PREFERRED = ("Q4_K_M", "Q4_K_S", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "BF16", "F16")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[0-9]\w*|T?Q[0-9]_[0-9]|MXFP4\w*|NVFP4\w*|BF16|F16|F32))(?=[-./]|$)", re.IGNORECASE
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_NOT_MODELS = ("mmproj", "imatrix", "lora")


@dataclass(frozen=True)
class HubName:
    """Name on the hub: the part after `hf:`."""

    repo: str  # org/name
    quant: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, spec: str) -> HubName:
        """Parse a name. Raise StoreError if it is invalid."""
        found = re.fullmatch(rf"hf:([\w.-]+/[\w.-]+)(?::([\w.-]+)|/({FILE}))?", spec, re.IGNORECASE)
        if found is None or not spec.isprintable() or leads_out(found[3] or "") or ".." in found[1]:
            raise StoreError(
                f"{spec} is not a name on the hub; expected hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo/file.gguf"
            )
        return cls(found[1], None if (found[2] or "").lower() == "latest" else found[2], found[3])

    def __str__(self) -> str:
        tail = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"hf:{self.repo}{tail}"

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        return models_folder() / "hf" / self.repo


def leads_out(file: str) -> bool:
    """True if a path in a repository could leave its folder, or is hidden."""
    return bool(file) and ("\\" in file or any(part[:1] in ("", ".") for part in file.split("/")))


def quant_of(name: str) -> str | None:
    """Return the type at the end of a file name, such as Q4_K_M."""
    found = _QUANT.findall(_SHARD.sub(".gguf", name).removesuffix(".gguf"))
    return found[-1].upper() if found else None


def choose_file(names: Iterable[str], wanted: HubName) -> str:
    """Return the file (or first shard) that `wanted` refers to. StoreError lists the files if there is no match."""
    models: list[str] = []
    spoken: list[str] = []
    for name in sorted(names):
        shard = _SHARD.search(name)
        is_model = is_model_file(name) and not any(part in name.lower() for part in _NOT_MODELS)
        if is_model and (shard is None or int(shard[1]) == 1):
            (spoken if is_whisper_file(name) else models).append(name)
    if spoken and not models and wanted.file is None:  # the type is not enough: the repository has all sizes
        example = f"hf:{wanted.repo}/{spoken[0]}"
        raise StoreError(f"{wanted.repo} has several files; choose one, as in {example}: {_listed(spoken)}")
    models += spoken if wanted.file is not None else []
    if not models:
        raise StoreError(f"{wanted.repo} has no GGUF files; use a repository whose name ends with -GGUF")
    if wanted.file is not None:
        if wanted.file in models:
            return wanted.file
        raise StoreError(f"{wanted.repo} has no {wanted.file}; it has {_listed(models)}")
    models = [name for name in models if not is_companion(name)] or models  # draft heads only by file name
    quants = {quant: name for name in reversed(models) if (quant := quant_of(name)) is not None}
    if wanted.quant is not None:
        for quant, name in quants.items():
            if quant.removeprefix("UD-") == wanted.quant.upper().removeprefix("UD-"):
                return name
        raise StoreError(f"{wanted.repo} has no {wanted.quant}; it has {_listed(list(quants) or models)}")
    for quant in _PREFERRED:
        if quant in quants:
            return quants[quant]
    if len(models) == 1:
        return models[0]
    raise StoreError(
        f"{wanted.repo} has several files; choose one, as in {wanted}:QUANT: {_listed(list(quants) or models)}"
    )


def shards_of(name: str) -> list[str]:
    """Return the names of all shards, given the first, or one name if the model is not split."""
    found = _SHARD.search(name)
    if found is None:
        return [name]
    stem, count = name[: found.start()], int(found[2])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def find_local(wanted: HubName) -> Path | None:
    """Return the file of a model that was pulled or is in the hub's cache, or None."""
    for folder in (wanted.folder, *snapshots(wanted.repo)):
        names = [path.relative_to(folder).as_posix() for path in find_files(folder)]
        if not names:
            continue
        try:
            name = choose_file(names, wanted)
        except StoreError:
            continue
        if all((folder / shard).is_file() for shard in shards_of(name)):
            return folder / name
    return None


def hub_cache() -> Path:
    """Return the cache folder of Hugging Face's tools."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def snapshots(repo: str) -> Sequence[Path]:
    """Return the folders of a repository in the hub's cache, newest version first."""
    folder = hub_cache() / f"models--{repo.replace('/', '--')}" / "snapshots"
    return sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime) if folder.is_dir() else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
