"""Checks of split models on a real GPU: two contexts on it stand for two GPUs. test_real.py of cuda runs them."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.cuda import CudaBackend
from woolly.runtime.cuda.context import Context
from woolly.runtime.cuda.device import CudaDevice, open_device
from woolly.runtime.cuda.kernel_archive import Archive
from woolly.runtime.cuda.libcuda import open_driver
from woolly.runtime.gpu.device import Device
from woolly.runtime.split import SplitBackend, SplitProgram
from woolly.runtime.split.placement_units import atoms_of
from woolly.runtime.split.program import Segment

Check = tuple[str, Callable[[], None]]
Open = Callable[[int], Device]

TOKENS = np.random.RandomState(7).randint(0, 264, 160)
LLAMA = replace(TINY["llama"], width=512, ffn=1024, head_dim=64, n_layers=4)
MODELS = {
    "F32": LLAMA,
    "Q4_K": replace(LLAMA, type=GGMLType.Q4_K),
    "Q8_0": replace(LLAMA, type=GGMLType.Q8_0),
    "experts": replace(FAMILIES["qwen3moe"], n_layers=4),
    "hybrid": FAMILIES["qwen3next"],
    "windows": FAMILIES["gemma3"],
}
OPTIONS = Options(threads=4, max_rows=160, cache_tokens=512)


class _OwnContext(Context):
    """A context beside the one that the process has on the GPU, as a second GPU would have it."""

    def __init__(self) -> None:
        super().__init__(open_driver(), 0, Archive())
        self._library, made = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        code = self._library.cuCtxCreate_v2(ctypes.byref(made), 0, self.number)
        assert code == 0, f"no second context: {code}"
        self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        self.context = made

    def close(self) -> None:
        super().close()
        self._life.is_over = True  # pinned memory goes with the context
        self._library.cuCtxDestroy_v2(self.context)


def open_first(number: int = 0) -> Device:
    """The GPU; as number 1, the same one in another context."""
    return open_device() if number == 0 else CudaDevice(_OwnContext(), 120.0)


def split(open: Open = open_first, counts: tuple[int, ...] = (160, 64, 9, 1)) -> Iterator[Check]:
    """Two contexts give the bits of one; a GPU and the CPU give one result for one row, near the reference."""
    for name in MODELS:
        yield f"split-{name}", partial(_contexts, open, name, counts)
        yield f"split-cpu-{name}", partial(_with_cpu, open, name, counts)


def _contexts(open: Open, name: str, counts: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_gguf(write_tiny(MODELS[name], Path(folder) / "x.gguf")) as file:
        plan, backend = trace(file), CudaBackend(open)
        whole = backend.compile(plan, file.tensors, OPTIONS)
        parts = SplitBackend(backend, insists=True).compile(plan, file.tensors, replace(OPTIONS, device="cuda:0,1"))
        assert [share.device for share in parts.about.shares] == ["cuda:0", "cuda:1"]
        for n_rows in counts:
            got, want = _logits(parts, n_rows), _logits(whole, n_rows)
            assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), f"in runs of {n_rows} rows they differ"


def _with_cpu(open: Open, name: str, counts: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder, open_gguf(write_tiny(MODELS[name], Path(folder) / "x.gguf")) as file:
        plan, backend = trace(file), CudaBackend(open)
        atoms, layers = atoms_of(plan)
        left = [atom.is_experts or (name != "experts" and atom.unit > len(layers) // 2) for atom in atoms]
        segments = [Segment(int(there), a.first, a.last) for a, there in zip(atoms, left, strict=True)]
        program = SplitProgram(
            plan,
            segments,
            [
                lambda own: backend.compile(own, file.tensors, OPTIONS),
                lambda own: get_backend("cpu").compile(own, file.tensors, OPTIONS),
            ],
        )
        whole = _logits(program, counts[0])
        exact = _logits(get_backend("reference").compile(plan, file.tensors, Options(max_rows=160)), counts[0])
        error = np.linalg.norm(whole - exact) / np.linalg.norm(exact)
        # A row that chooses another expert lies further off.
        assert error < (0.1 if name == "experts" else 0.03), f"{error:.4f} from the reference"
        for n_rows in counts[1:]:
            got = _logits(program, n_rows)
            assert np.array_equal(got.view(np.uint32), whole.view(np.uint32)), f"in runs of {n_rows} rows it differs"


def _logits(program, n_rows: int) -> np.ndarray:
    """Logits of a text in runs of n rows."""
    tokens, state, parts, slot = TOKENS[: program.max_rows], program.new_state(5, 2), [], -1
    for i, first in enumerate(range(0, len(tokens), n_rows)):
        part = tokens[first : first + n_rows]
        batch = Batch.of([(part, first, [4, 2, 0, 1, 3])], range(len(part)), slots=[(slot, i % 2)])
        parts.append(program.run(batch, state).copy())
        slot = i % 2
    return np.concatenate(parts)
