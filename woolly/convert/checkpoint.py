"""Checkpoint: a model folder as published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.json_files import read_json
from woolly.convert.safetensors import StoredTensor, read_safetensors
from woolly.errors import ModelError, UnsupportedError

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Checkpoint:
    """Configuration and memory-mapped tensors of a folder. Tensors are read lazily."""

    folder: Path
    config: Hyperparameters
    raw: dict[str, Any]  # config.json
    tensors: dict[str, StoredTensor]


def is_checkpoint(folder: Path) -> bool:
    """Return True if a folder looks like a model from the hub in safetensors format."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder. Raise ModelError if its files are invalid or inconsistent."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; expected one with config.json and safetensors files")
    raw = read_json(folder / "config.json")
    tensors: dict[str, StoredTensor] = {}
    for path in _files(folder):
        for name, stored in read_safetensors(path).items():
            if name in tensors:
                raise ModelError(f"{path}: tensor {name!r:.90} is also in {tensors[name].file.path.name}")
            tensors[name] = stored
    _check_index(folder, tensors)
    return Checkpoint(folder, Hyperparameters(raw, str(folder / "config.json")), raw, tensors)


def _files(folder: Path) -> list[Path]:
    """Return the safetensors files listed in the index, or all safetensors files."""
    index = read_json(folder / _INDEX, optional=True)
    if index:
        return [folder / name for name in sorted(set(_weight_map(folder, index).values()))]
    files = sorted(folder.glob("*.safetensors"))
    # Skip files in Mistral's original format if the same weights also exist in the hub's format.
    if len(files) > 1 and any(path.name.startswith("model") for path in files):
        files = [path for path in files if not path.name.startswith("consolidated")]
    if not files:
        if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
            raise UnsupportedError(
                f"{folder} has weights as pickled Python objects (.bin, .pth), which can run code when they are read;"
                " expected .safetensors files"
            )
        raise ModelError(f"{folder} has no .safetensors files")
    return files


def _weight_map(folder: Path, index: dict[str, Any]) -> dict[str, str]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelError(f"{folder / _INDEX}: expected a weight_map from tensors to files")
    for file in set(places.values()):
        is_name = file.isprintable() and len(file) <= 255 and not file.startswith(".") and not {"/", "\\"} & set(file)
        if not is_name or not file.endswith(".safetensors"):
            raise ModelError(f"{folder / _INDEX}: {file!r:.90} is not the name of a .safetensors file in this folder")
        if not (folder / file).is_file():
            raise ModelError(f"{folder}: the index lists {file!r:.90}, which is not in the folder")
    return places


def _check_index(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    index = read_json(folder / _INDEX, optional=True)
    for name, file in (_weight_map(folder, index) if index else {}).items():
        if name not in tensors or tensors[name].file.path.name != file:
            raise ModelError(f"{folder}: the index lists tensor {name!r:.90} in {file}, but it is not in that file")
    if not tensors:
        raise ModelError(f"{folder}: the safetensors files have no tensors")
