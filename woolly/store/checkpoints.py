"""Checkpoints of the hub: the files of a repository that `woolly convert` reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from woolly.errors import StoreError
from woolly.store.download import Remote, download, unreachable
from woolly.store.hub import HubName

_ENDS = (".safetensors", ".json", ".jinja", "tokenizer.model", "merges.txt", "vocab.txt")


def pull_checkpoint(repo: str, progress: Callable[[int, int], None] | None = None) -> Path:
    """Downloads config, tokenizer and safetensors files of a repository unless they are here; returns their folder."""
    wanted = HubName.parse(f"hf:{repo}")
    remotes = _remotes(wanted)
    total, done = sum(remote.n_bytes or 0 for remote in remotes), 0
    for remote in remotes:
        assert remote.file is not None
        path = wanted.folder / remote.file
        if not path.is_file() or (remote.n_bytes is not None and path.stat().st_size != remote.n_bytes):
            path.unlink(missing_ok=True)  # of an earlier version
            start = done

            def report(n_bytes: int, _: int, start: int = start) -> None:
                assert progress is not None
                progress(start + n_bytes, total)

            download(remote, path, None if progress is None else report)
        done += remote.n_bytes or 0
    return wanted.folder


def _remotes(wanted: HubName) -> list[Remote]:
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    endpoint = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    try:
        info = hub.HfApi(endpoint=endpoint).model_info(wanted.repo, files_metadata=True, timeout=30)
    except (errors.GatedRepoError, errors.RepositoryNotFoundError):
        raise StoreError(
            f"there is no repository hf:{wanted.repo} on the hub that can be read: check the name, or set HF_TOKEN"
        ) from None
    except Exception as error:  # its HTTP library: exception names and bases differ between versions
        raise StoreError(unreachable(endpoint, str(wanted), error)) from error
    files: dict[str, Any] = {one.rfilename: one for one in info.siblings or [] if _is_part(one.rfilename)}
    if not any(name.endswith(".safetensors") for name in files):
        raise StoreError(f"{wanted.repo} holds no .safetensors files, so there is nothing to convert")
    token = hub.get_token()
    remotes = []
    for name, file in files.items():
        url = hub.hf_hub_url(wanted.repo, name, revision=info.sha, endpoint=endpoint)
        remotes.append(Remote(url, str(wanted), file.lfs.sha256 if file.lfs else None, file.size, token, name))
    return remotes


def _is_part(name: str) -> bool:
    """True if a file at the top of a repository belongs to its checkpoint; unsafe names are skipped."""
    return name.isprintable() and "/" not in name and "\\" not in name and name[:1] != "." and name.endswith(_ENDS)
