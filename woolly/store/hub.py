"""Models on the Hugging Face hub: `hf:org/repo`, `hf:org/repo:QUANT`, `hf:org/repo/file.gguf`.

Files of whisper.cpp (`ggml-*.bin`) are taken by their names alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from woolly.errors import StoreError
from woolly.store.companions import best_draft, best_projector, is_companion
from woolly.store.download import HUB, Remote, check_online, download, unreachable
from woolly.store.file_formats import FILE, find_files, is_model_file, is_whisper_file
from woolly.store.folder import models_folder

# The type that is taken if the name gives none, the usual choice first.
_PREFERRED = ("Q4_K_M", "Q4_K_S", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "BF16", "F16")
_QUANT = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[0-9]\w*|T?Q[0-9]_[0-9]|MXFP4\w*|NVFP4\w*|BF16|F16|F32))(?=[-./]|$)", re.IGNORECASE
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_NOT_MODELS = ("mmproj", "imatrix", "lora")


@dataclass(frozen=True)
class HubName:
    """A name on the hub: what follows `hf:`."""

    repo: str  # org/name
    quant: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, spec: str) -> HubName:
        """Returns the parsed name; raises StoreError if `spec` is not one."""
        found = re.fullmatch(rf"hf:([\w.-]+/[\w.-]+)(?::([\w.-]+)|/({FILE}))?", spec, re.IGNORECASE)
        if found is None or not spec.isprintable() or _leads_out(found[3] or "") or ".." in found[1]:
            raise StoreError(
                f"{spec} is not a name on the hub; expected hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo/file.gguf"
            )
        return cls(found[1], None if (found[2] or "").lower() == "latest" else found[2], found[3])

    def __str__(self) -> str:
        tail = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"hf:{self.repo}{tail}"

    @property
    def folder(self) -> Path:
        """Returns the folder of its files."""
        return models_folder() / "hf" / self.repo


def _leads_out(file: str) -> bool:
    """Returns whether a path of a repository could leave its folder, or be hidden in it."""
    return bool(file) and ("\\" in file or any(part[:1] in ("", ".") for part in file.split("/")))


def quant_of(name: str) -> str | None:
    """Returns the type that a file's name ends with, such as Q4_K_M."""
    found = _QUANT.findall(_SHARD.sub(".gguf", name).removesuffix(".gguf"))
    return found[-1].upper() if found else None


def choose_file(names: Iterable[str], wanted: HubName) -> str:
    """Returns the file, or first shard, that `wanted` means; raises StoreError with a list of the files otherwise."""
    models: list[str] = []
    spoken: list[str] = []
    for name in sorted(names):
        shard = _SHARD.search(name)
        is_model = is_model_file(name) and not any(part in name.lower() for part in _NOT_MODELS)
        if is_model and (shard is None or int(shard[1]) == 1):
            (spoken if is_whisper_file(name) else models).append(name)
    if spoken and not models and wanted.file is None:  # a type tells nothing: the repository has all sizes
        example = f"hf:{wanted.repo}/{spoken[0]}"
        raise StoreError(f"say which file of {wanted.repo} is meant, as in {example}: it has {_listed(spoken)}")
    models += spoken if wanted.file is not None else []
    if not models:
        raise StoreError(f"{wanted.repo} holds no GGUF file: look for a repository whose name ends with -GGUF")
    if wanted.file is not None:
        if wanted.file in models:
            return wanted.file
        raise StoreError(f"{wanted.repo} holds no {wanted.file}: it has {_listed(models)}")
    models = [name for name in models if not is_companion(name)] or models  # a head is taken if its file is named
    quants = {quant: name for name in reversed(models) if (quant := quant_of(name)) is not None}
    if wanted.quant is not None:
        for quant, name in quants.items():
            if quant.removeprefix("UD-") == wanted.quant.upper().removeprefix("UD-"):
                return name
        raise StoreError(f"{wanted.repo} has no {wanted.quant}: it has {_listed(list(quants) or models)}")
    for quant in _PREFERRED:
        if quant in quants:
            return quants[quant]
    if len(models) == 1:
        return models[0]
    raise StoreError(
        f"say which file of {wanted.repo} is meant, as in {wanted}:QUANT: it has {_listed(list(quants) or models)}"
    )


def shards_of(name: str) -> list[str]:
    """Returns the names of all shards, given the first; one name if the model is not split."""
    found = _SHARD.search(name)
    if found is None:
        return [name]
    stem, count = name[: found.start()], int(found[2])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def hub_remotes(wanted: HubName, *, with_projector: bool = False, with_draft: bool = False) -> list[Remote]:
    """Asks the hub for the files of a model, with sizes and checksums. HF_ENDPOINT and HF_TOKEN apply.

    `with_projector`: the model's projector comes after them, if the repository has one; `with_draft`: then the file
    that guesses its tokens. StoreError if HF_HUB_OFFLINE is set.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    check_online(endpoint, str(wanted))
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        info = hub.HfApi(endpoint=endpoint).model_info(wanted.repo, files_metadata=True, timeout=30)
    except errors.GatedRepoError:
        raise StoreError(
            f"{wanted.repo} is gated: accept its terms on the hub, then set HF_TOKEN to a token of yours"
        ) from None
    except errors.RepositoryNotFoundError:
        raise StoreError(
            f"there is no repository hf:{wanted.repo} on the hub, or it is private: check the name, or set HF_TOKEN"
        ) from None
    except Exception as error:  # its HTTP library: exception names and bases differ between versions
        raise StoreError(unreachable(endpoint, str(wanted), error)) from error
    files: dict[str, Any] = {file.rfilename: file for file in info.siblings or []}
    token = hub.get_token()
    remotes = []
    first = choose_file(files, wanted)
    projector = best_projector(files, first) if with_projector else None
    folders = ["", *map(str, PurePosixPath(first).parents)]  # where `find_draft` looks
    beside = [name for name in files if name.rpartition("/")[0] in folders]
    block = best_draft(beside, first) if with_draft else None
    for name in [*shards_of(first), *(one for one in (projector, block) if one is not None)]:
        # The server at HF_ENDPOINT chooses these names, and files are written under them.
        if not name.isprintable() or _leads_out(name):
            raise StoreError(
                f"{wanted.repo} names a file {name!r}, which could be outside of its folder: choose another"
            )
        if name not in files:
            raise StoreError(f"{wanted.repo} lacks {name}, a shard of this model: choose another file")
        file = files[name]
        url = hub.hf_hub_url(wanted.repo, name, revision=info.sha, endpoint=endpoint)
        remotes.append(Remote(url, str(wanted), file.lfs.sha256 if file.lfs else None, file.size, token, name))
    return remotes


def pull_hub(
    wanted: HubName,
    progress: Callable[[int, int], None] | None = None,
    *,
    with_projector: bool = True,
    with_draft: bool = False,
) -> Path:
    """Downloads the files of a model and its projector unless they are here or in the hub's cache; returns the first.

    A model that is here is not asked for again: `with_projector` counts for a download. `with_draft` asks all the same.
    """
    here = find_local(wanted)
    if here is not None and (wanted.quant or wanted.file) and not with_draft:
        return here
    remotes = hub_remotes(wanted, with_projector=with_projector, with_draft=with_draft)
    total = sum(remote.n_bytes or 0 for remote in remotes)
    done = 0
    first: Path | None = None
    for remote in remotes:
        assert remote.file is not None
        path = _file_here(wanted, remote.file)
        if path is None:
            start = done

            def report(n_bytes: int, _: int, start: int = start) -> None:
                assert progress is not None
                progress(start + n_bytes, total)

            path = download(remote, wanted.folder / remote.file, None if progress is None else report)
        done += remote.n_bytes or 0
        first = first or path
    assert first is not None
    return first


def find_local(wanted: HubName) -> Path | None:
    """Returns the file of a model that was pulled or is in the hub's cache, or None."""
    for folder in (wanted.folder, *_snapshots(wanted.repo)):
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


def _file_here(wanted: HubName, file: str) -> Path | None:
    """Returns a file of a repository, also one that is no model."""
    folders = (wanted.folder, *_snapshots(wanted.repo))
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


def hub_cache() -> Path:
    """Returns the folder in which Hugging Face's tools keep models."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def _snapshots(repo: str) -> Sequence[Path]:
    folder = hub_cache() / f"models--{repo.replace('/', '--')}" / "snapshots"
    return sorted(folder.iterdir(), key=lambda path: -path.stat().st_mtime) if folder.is_dir() else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
