"""Tiny models of the families on the emulated GPU, against the reference.

A test runs one of them. Those that are named, or all of them in ten minutes:

    python -m tests.runtime.cuda.models qwen3next rwkv7
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.cuda.backend import CudaBackend

TOKENS = np.random.RandomState(7).randint(0, 264, 41)


def logits(program, *lengths):
    """Logits of all tokens of a text in chunks."""
    state, parts, before, first = program.new_state(2, 2), [], -1, 0
    for i, n in enumerate(lengths):
        batch = Batch.of([(TOKENS[first : first + n], first, [1, 0])], range(n), slots=[(before, i % 2)])
        parts.append(program.run(batch, state).copy())
        before, first = i % 2, first + n
    return np.concatenate(parts)


def check(name: str, folder: Path, *lengths: int) -> float:
    """The error of the logits; AssertionError unless those of a text in pieces have the bits of those of the whole."""
    with open_gguf(write_tiny(FAMILIES[name], folder / "tiny.gguf")) as file:
        plan = trace(file)
        program = CudaBackend(EmulatedDevice).compile(plan, file.tensors, Options(kv_type="f32", max_rows=64))
        whole, pieces = logits(program, sum(lengths)), logits(program, *lengths)
        program.close()
        exact = logits(get_backend("reference").compile(plan, file.tensors, Options()), sum(lengths))
    np.testing.assert_array_equal(pieces.view(np.uint32), whole.view(np.uint32))
    return float((np.linalg.norm(whole - exact, axis=1) / np.linalg.norm(exact, axis=1)).max())


def main(*names: str) -> int:
    n_wrong = 0
    for name in names or FAMILIES:
        try:
            with tempfile.TemporaryDirectory() as folder:
                error = check(name, Path(folder), 38, 1, 2)
            n_wrong += error > 8e-5
            print(f"{name}: {error:.1e}")
        except Exception as error:
            n_wrong += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
