"""Makes the golden vectors and scores of encoders with torch and transformers, as make.py does the logits.

    python -m tests.goldens.make_encoders          (from the project's root, in the environment of make.py)

Each golden holds, for each text of tests/cases/encoders.py by its length, the rows that pooling leaves.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.cases.encoders import ENCODERS, PAIR, POOLINGS, SEPARATOR, TEXTS
from tests.cases.tiny import write_tiny
from tests.goldens.encoder_classes import model_of
from tests.goldens.make import HERE, File

KINDS = {kind: name for name, kind in POOLINGS.items()}


def rows(file, model, ids):
    """Output of the model for one text."""
    types = torch.zeros(1, len(ids), dtype=torch.long)
    pooling = KINDS[int(file.get("pooling_type"))]
    if pooling == "rank" and SEPARATOR in ids and len(np.atleast_2d(file.tensors.get("token_types.weight", 0))) > 1:
        types[0, ids.index(SEPARATOR) + 1 :] = 1
    with torch.no_grad():
        hidden = model(torch.tensor([ids]), types)[0]
    if pooling == "rank":
        return hidden.numpy()[None]
    hidden = hidden.numpy()
    kept = {"none": hidden, "cls": hidden[:1], "last": hidden[-1:], "mean": hidden.mean(axis=0, keepdims=True)}[pooling]
    for name in ("dense_2", "dense_3"):
        if f"{name}.weight" in file.tensors:
            kept = kept @ file.tensors[f"{name}.weight"].T
    return kept


def main():
    with tempfile.TemporaryDirectory() as folder:
        for tiny in ENCODERS.values():
            path = HERE / f"tiny-{tiny.name}.npz"
            if path.exists():  # delete a golden to make it anew
                continue
            file = File(write_tiny(tiny, Path(folder, f"{tiny.name}.gguf")))
            model = model_of(file)
            texts = [*TEXTS.values(), PAIR]
            np.savez_compressed(path, *(rows(file, model, ids).astype(np.float32) for ids in texts))
            print(f"{tiny.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
