"""Downloads from the Hugging Face hub: files of a model, or of a checkpoint for `woolly convert`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from woolly.errors import StoreError
from woolly.store.companions import best_draft, best_projector
from woolly.store.download import HUB, Remote, check_online, download, unreachable
from woolly.store.hub import HubName, choose_file, find_local, leads_out, shards_of, snapshots

_CHECKPOINT_ENDS = (".safetensors", ".json", ".jinja", "tokenizer.model", "merges.txt", "vocab.txt")

Progress = Callable[[int, int], None]


def hub_remotes(wanted: HubName, *, with_projector: bool = False, with_draft: bool = False) -> list[Remote]:
    """Query the hub for the files of a model, with sizes and checksums. HF_ENDPOINT and HF_TOKEN apply.

    `with_projector` appends the projector and `with_draft` the draft model, if the repository has them. StoreError if
    HF_HUB_OFFLINE is set.
    """
    return _remotes(wanted, lambda names: _model_files(wanted, names, with_projector, with_draft))


def _model_files(wanted: HubName, names: Sequence[str], with_projector: bool, with_draft: bool) -> list[str]:
    """Return the names of a model's shards and companions in its repository."""
    first = choose_file(names, wanted)
    projector = best_projector(names, first) if with_projector else None
    folders = ["", *map(str, PurePosixPath(first).parents)]  # folders that `find_draft` searches
    beside = [name for name in names if name.rpartition("/")[0] in folders]
    draft = best_draft(beside, first) if with_draft else None
    chosen = [*shards_of(first), *(one for one in (projector, draft) if one is not None)]
    for name in chosen:
        # The server at HF_ENDPOINT chooses these names, so they are untrusted paths.
        if not name.isprintable() or leads_out(name):
            raise StoreError(
                f"{wanted.repo} has a file {name!r}, whose path may leave its folder; choose another repository"
            )
        if name not in names:
            raise StoreError(f"{wanted.repo} has no {name}, a shard of this model; choose another file")
    return chosen


def _checkpoint_files(wanted: HubName, names: Sequence[str]) -> list[str]:
    """Return the names of a checkpoint's files at the top level of its repository, without unsafe names."""
    chosen = [
        name
        for name in names
        if name.isprintable() and "/" not in name and not leads_out(name) and name.endswith(_CHECKPOINT_ENDS)
    ]
    if not any(name.endswith(".safetensors") for name in chosen):
        raise StoreError(f"{wanted.repo} has no .safetensors files to convert")
    return chosen


def _remotes(wanted: HubName, choose: Callable[[Sequence[str]], list[str]]) -> list[Remote]:
    """Return the selected files of a repository, with sizes and checksums."""
    endpoint = os.environ.get("HF_ENDPOINT") or HUB
    check_online(endpoint, str(wanted))
    import huggingface_hub as hub
    from huggingface_hub import errors

    try:
        info = hub.HfApi(endpoint=endpoint).model_info(wanted.repo, files_metadata=True, timeout=30)
    except errors.GatedRepoError:
        raise StoreError(
            f"{wanted.repo} is gated; accept its terms on the hub, then set HF_TOKEN to your token"
        ) from None
    except errors.RepositoryNotFoundError:
        raise StoreError(
            f"there is no repository hf:{wanted.repo} on the hub, or it is private; check the name, or set HF_TOKEN"
        ) from None
    except Exception as error:  # exceptions of the HTTP library differ between versions
        raise StoreError(unreachable(endpoint, str(wanted), error)) from error
    files: Mapping[str, Any] = {file.rfilename: file for file in info.siblings or []}
    token = hub.get_token()
    remotes = []
    for name in choose(list(files)):
        url = hub.hf_hub_url(wanted.repo, name, revision=info.sha, endpoint=endpoint)
        lfs = files[name].lfs
        remotes.append(Remote(url, str(wanted), lfs.sha256 if lfs else None, files[name].size, token, name))
    return remotes


def pull_hub(
    wanted: HubName, progress: Progress | None = None, *, with_projector: bool = True, with_draft: bool = False
) -> Path:
    """Download the files of a model and its projector unless they are on disk. Return the path of the first file.

    Models on disk or in the hub's cache are not requested again, so `with_projector` only affects new downloads.
    `with_draft` always queries the hub.
    """
    here = find_local(wanted)
    if here is not None and (wanted.quant or wanted.file) and not with_draft:
        return here
    remotes = hub_remotes(wanted, with_projector=with_projector, with_draft=with_draft)
    return _download_missing(wanted, remotes, lambda remote: _file_here(wanted, str(remote.file)), progress)[0]


def pull_checkpoint(repo: str, progress: Progress | None = None) -> Path:
    """Download config, tokenizer and safetensors files of a repository unless they exist. Return their folder."""
    wanted = HubName.parse(f"hf:{repo}")

    def find(remote: Remote) -> Path | None:
        path = wanted.folder / str(remote.file)
        if path.is_file() and (remote.n_bytes is None or path.stat().st_size == remote.n_bytes):
            return path
        path.unlink(missing_ok=True)  # of an earlier version
        return None

    _download_missing(wanted, _remotes(wanted, lambda names: _checkpoint_files(wanted, names)), find, progress)
    return wanted.folder


def _download_missing(
    wanted: HubName, remotes: Sequence[Remote], find: Callable[[Remote], Path | None], progress: Progress | None
) -> list[Path]:
    """Download the files that `find` does not find. Return the paths of all files; progress covers all files."""
    total, done = sum(remote.n_bytes or 0 for remote in remotes), 0
    paths = []
    for remote in remotes:
        path = find(remote)
        if path is None:
            start = done

            def report(n_bytes: int, _: int, start: int = start) -> None:
                assert progress is not None
                progress(start + n_bytes, total)

            path = download(remote, wanted.folder / str(remote.file), None if progress is None else report)
        done += remote.n_bytes or 0
        paths.append(path)
    return paths


def _file_here(wanted: HubName, file: str) -> Path | None:
    """Return the path of a file of a repository, which may not be a model, or None."""
    folders = (wanted.folder, *snapshots(wanted.repo))
    return next((folder / file for folder in folders if (folder / file).is_file()), None)
