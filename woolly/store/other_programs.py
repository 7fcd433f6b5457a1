"""Models of other programs, used in place and never modified."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from woolly.store.file_formats import find_files, is_companion
from woolly.store.hub import hub_cache
from woolly.store.stored_model import StoredModel, describe, is_later_shard

_MODEL_LAYER = "application/vnd.ollama.image.model"
_PROJECTOR_LAYER = "application/vnd.ollama.image.projector"


def ollama_models() -> Iterator[StoredModel]:
    """Yield Ollama's models as `ollama:name:tag`."""
    for store, place, layers in _ollama_manifests():
        host, owner, *name, tag = place
        who = [part for part in (host, owner) if part not in ("registry.ollama.ai", "library")]
        blob = _blob(store, layers[_MODEL_LAYER])
        if found := describe(f"ollama:{'/'.join([*who, *name])}:{tag}", blob, "Ollama"):
            yield found


def ollama_projector(model: Path) -> Path | None:
    """Return the projector that Ollama has for a model's file, or None."""
    with contextlib.suppress(OSError, RuntimeError):
        for store, _, layers in _ollama_manifests():
            if _PROJECTOR_LAYER in layers and _blob(store, layers[_MODEL_LAYER]) == model:
                found = _blob(store, layers[_PROJECTOR_LAYER])
                return found if found.is_file() else None
    return None


def _ollama_manifests() -> Iterator[tuple[Path, tuple[str, ...], dict[str, str]]]:
    """Yield store, place (host, owner, name, tag) and layers by media type of each model."""
    for store in _ollama_stores():
        manifests = store / "manifests"
        for manifest in sorted(manifests.rglob("*")) if manifests.is_dir() else ():
            parts = manifest.relative_to(manifests).parts
            if len(parts) < 4 or not manifest.is_file():
                continue
            try:
                listed = json.loads(manifest.read_text())["layers"]
                layers = {str(layer["mediaType"]): str(layer["digest"]) for layer in reversed(listed)}
            except (OSError, ValueError, KeyError, TypeError):
                continue  # not a manifest
            if _MODEL_LAYER in layers:  # other models have no weights
                yield store, parts, layers


def _blob(store: Path, digest: str) -> Path:
    return store / "blobs" / digest.replace(":", "-").replace("/", "-")


def _ollama_stores() -> Iterator[Path]:
    if given := os.environ.get("OLLAMA_MODELS"):
        yield Path(given).expanduser()
        return
    yield Path("~/.ollama/models").expanduser()
    yield Path("/usr/share/ollama/.ollama/models")


def lm_studio_models() -> Iterator[StoredModel]:
    """Yield LM Studio's models as `lmstudio:publisher/repo/file.gguf`."""
    homes = [Path("~/.lmstudio").expanduser(), Path("~/.cache/lm-studio").expanduser()]
    with contextlib.suppress(OSError, ValueError):
        homes.insert(0, Path(Path("~/.lmstudio-home-pointer").expanduser().read_text().strip()))
    seen = set()
    for home in homes:
        folder = home / "models"
        for path in sorted(folder.glob("*/*/*.gguf")) if folder.is_dir() else ():
            name = path.relative_to(folder).as_posix()
            if name not in seen and not is_later_shard(path) and not is_companion(name):
                seen.add(name)
                if found := describe(f"lmstudio:{name}", path, "LM Studio"):
                    yield found


def hub_models() -> Iterator[StoredModel]:
    """Yield the newest version of each model in the hub's cache as `hf:org/repo/file.gguf`."""
    cache = hub_cache()
    for folder in sorted(cache.glob("models--*--*")) if cache.is_dir() else ():
        repo = "/".join(folder.name.split("--")[1:])
        seen = set()
        snapshots = folder / "snapshots"
        for snapshot in sorted(snapshots.iterdir(), key=lambda p: -p.stat().st_mtime) if snapshots.is_dir() else ():
            for path in sorted(find_files(snapshot)):
                name = path.relative_to(snapshot).as_posix()
                if name not in seen and not is_later_shard(path) and not is_companion(name):
                    seen.add(name)
                    if found := describe(f"hf:{repo}/{name}", path, "Hugging Face"):
                        yield found
