"""Pooling and labels of embedding and classification models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from woolly.convert.checkpoint import Checkpoint
from woolly.convert.json_files import read_json
from woolly.convert.safetensors import read_safetensors
from woolly.convert.source import Plain, Source
from woolly.errors import UnsupportedError

# Names in sentence-transformers, and the GGUF `pooling_type`.
_POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}


def pooling_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the keys, empty for text-generation models."""
    names = checkpoint.raw.get("architectures")
    if isinstance(names, list) and any(str(name).endswith("ForSequenceClassification") for name in names):
        labels = checkpoint.raw.get("id2label")
        listed = [str(labels[key]) for key in sorted(labels, key=int)] if isinstance(labels, dict) else []
        return {"pooling_type": 4} | ({"classifier.output_labels": listed} if listed else {})
    out: dict[str, Any] = {}
    for source in dense_sources(checkpoint):
        stem = source.name.removesuffix(".weight")
        out |= {f"{stem}_feat_in": source.shape[-1], f"{stem}_feat_out": source.shape[0]}
    path = checkpoint.folder / "1_Pooling" / "config.json"
    chosen = [name for name, value in read_json(path, optional=True).items() if value is True and "mode" in name]
    if not chosen:
        return out
    if len(chosen) > 1 or chosen[0] not in _POOLINGS:
        raise UnsupportedError(f"{path}: pooling {', '.join(chosen)[:90]} is not supported by GGUF")
    return out | {"pooling_type": _POOLINGS[chosen[0]]}


def dense_sources(checkpoint: Checkpoint) -> list[Source]:
    """Return the dense layers of sentence-transformers, named dense_2 and dense_3 after their folders."""
    found: list[Source] = []
    for path in sorted(checkpoint.folder.glob("[0-9]_Dense/model.safetensors")):
        for name, stored in read_safetensors(path).items():
            end = name.rpartition(".")[2]
            found.append(Plain(replace(stored, name=f"dense_{path.parent.name[0]}.{end}")))
    return found
