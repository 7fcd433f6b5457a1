"""Tiny models that read whole texts: an embedder, rankers and a classifier, on the plan of a decoder."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.cases.tiny import TINY, Tiny, write_tiny

_RANDOM = np.random.RandomState(7)
_QWEN3 = replace(TINY["qwen3"], tied=True)


def _head(name: str, labels: list[str], **shared: str) -> Tiny:
    extra = {"pooling_type": 4, **({"classifier.output_labels": labels} if labels else {})}
    head = {"cls.output.weight": _RANDOM.standard_normal((max(1, len(labels)), _QWEN3.width)) / 4}
    return replace(_QWEN3, name=name, extra=extra, root=head, shared_metadata=shared)


READERS = {
    tiny.name: tiny
    for tiny in (
        replace(_QWEN3, name="embedder", extra={"pooling_type": 3}),
        replace(_QWEN3, name="averager", extra={"pooling_type": 1}),
        _head("ranker", []),
        _head(
            "judge",
            ["yes", "no"],
            **{"tokenizer.chat_template.rerank": "<|im_start|>Query: {query} Document: {document}<|im_end|>"},
        ),
        _head("classifier", ["sheep", "goat", "neither"]),
    )
}


def write_readers(folder: Path, *names: str) -> Path:
    """Writes some of them into a folder, and gives the folder back."""
    for name in names or READERS:
        write_tiny(READERS[name], folder / f"{name}.gguf")
    return folder
