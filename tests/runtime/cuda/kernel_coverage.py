"""Kernels that each case launches, found without a GPU, and cases that together launch all of them.

`scripts/gpu sanitize` runs these under compute-sanitizer.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.cases.attention import _attention
from tests.cases.elements import _matrices
from tests.cases.moe import Experts
from tests.cases.ops import N_PAGES, N_TOKENS, ROWS, Case, CaseTracer, Run, _both, _matrix, _tables
from tests.cases.scans import ALL, delta_nets, mambas, mambas2, wkvs_and_lightnings
from tests.runtime.cuda.harness import CaseProgram
from woolly.plan import Handle
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, pages_for
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.cuda.device import CudaDevice
from woolly.runtime.cuda.ops import KERNELS
from woolly.runtime.gpu import graph_runner
from woolly.runtime.gpu.device import Address

_T = GGMLType
# A type for each kind of tiles.
_TYPES = (_T.F16, _T.Q8_0, _T.IQ3_S, _T.Q4_0, _T.Q4_1, _T.Q5_0, _T.Q5_1, _T.IQ4_NL, _T.MXFP4, _T.NVFP4)
_TYPES = (*_TYPES, _T.Q2_K, _T.Q3_K, _T.Q4_K, _T.Q5_K, _T.Q6_K)
# Rows of products: the kernels of one to 8, of 9 to 32, and those of many, of which the last takes 1,793 and more.
_COUNTS = (1, 2, 3, 9, 17, 40, 70, 500, 900, 1793)
# A prompt, a row after 2,048 positions, and sequences of one row each, some and many.
_FAR = tuple(range(70))
_CONTEXTS: tuple[Run, ...] = (
    ((1030, 0, _FAR),),
    ((1025, 1030, _FAR),),
    ((1, 2055, _FAR),),
    tuple((3, 0, (70 + i,)) for i in range(3)),
    tuple((1, 3, (70 + i,)) for i in range(3)),
    tuple((5, 0, (80 + i,)) for i in range(9)),
    tuple((1, 5, (80 + i,)) for i in range(9)),
    ((1, 6, (80,)),),
)


def _runs(counts: Iterable[int]) -> tuple[Run, ...]:
    return tuple(((n, 0, tuple(range(pages_for(n)))),) for n in counts)


def _products() -> Iterator[Case]:
    one = lambda p: p.linear(p.embed("x"), "w")  # noqa: E731
    for type in _TYPES:
        # So few rows of weights that blocks share slices, and so many that each has some.
        for columns, rows, counts in ((512, 1040, _COUNTS), (4096, 144, _COUNTS[:6]), (4352, 144, _COUNTS[:6])):
            make = _both(_tables(x=columns), _matrix("w", type, rows, columns))
            yield Case(f"every-{type.name}-{columns}", "linears", make, one, "linears", _runs(counts))
        make = _both(_tables(x=512), _matrices("w", type, 2, 18, 256))
        heads = lambda p: p.per_head_linear(p.embed("x"), "w", heads=2, width=18)  # noqa: E731
        yield Case(f"every-heads-{type.name}", "per_head_linear", make, heads, "heads", ROWS)
        experts = Experts(8, 2, (type,) * 3, 256, 512, normalize=True)
        make, runs = lambda rng, e=experts: e.make(rng, N_TOKENS), _runs((1, 2, 5, 90, 200))
        yield Case(f"every-moe-{type.name}", "moe", make, experts.build, "moe", runs)
        # Gate and up of two types are two products.
        experts = Experts(8, 2, (type, _T.Q4_0 if type != _T.Q4_0 else _T.Q4_1, type), 256, 512, normalize=True)
        make = lambda rng, e=experts: e.make(rng, N_TOKENS)  # noqa: E731
        yield Case(f"every-moe-apart-{type.name}", "moe", make, experts.build, "moe", _runs((1, 5)))

    def three(p: CaseTracer) -> Handle:
        x = p.embed("x")
        q, k, v = (p.linear(x, name) for name in "qkv")
        return p.concat(p.concat(q, k), v)

    for type in (_T.Q4_K, _T.Q5_K):
        for columns in (512, 4096, 4352):
            weights = [_matrix(name, _T.Q6_K if name == "v" else type, 40, columns) for name in "qkv"]
            make = _both(_tables(x=columns), *weights)
            yield Case(f"every-mixed-{type.name}-{columns}", "concat", make, three, "linears", _runs(_COUNTS[:6]))


def _others() -> Iterator[Case]:
    for head_dim in (64, 80, 96, 128, 256, 576):
        for kv_type in ("f16", "q8_0"):
            yield _attention(f"every-{head_dim}-{kv_type}", head_dim, 4, "neox", kv_type, _CONTEXTS)
    for head_dim in (64, 96, 128, 256, 576):
        for kv_type in ("q4", "q8_0/q4", "f16/q4"):
            yield _attention(f"hadamard-{head_dim}-{kv_type}", head_dim, 4, "neox", kv_type, _CONTEXTS[:2])
    for type in _T:
        if type.name in {case.split("-")[1] for case in ALL if case.startswith("embed-")}:
            make = _both(_tables(x=256), _matrix("at", type, 150, 256))
            at = lambda p: p.embed_position(p.embed("x"), "at")  # noqa: E731
            yield Case(f"every-position-{type.name}", "embed_position", make, at, "exact", ROWS)
    sizes = (16, 32, 64, 128, 256)  # keys of a state
    yield from delta_nets(*((1, 1, n, 16) for n in sizes[:4]))
    yield from mambas(*((16, n) for n in sizes))
    yield from mambas2(*((2, 1, n, 16) for n in sizes))
    yield from wkvs_and_lightnings(*((n, n) for n in sizes[:4]))
    light = lambda p: p.lightning_attention(p.embed("q"), p.embed("k"), p.embed("v"), head=256, slope=0.7)  # noqa: E731
    yield Case("lightning_attention-256x256", "lightning_attention", _tables(q=256, k=256, v=256), light, "scan")


@functools.cache
def all_cases() -> dict[str, Case]:
    """The case table, and cases of the kernels that only larger sizes or other types need."""
    return ALL | {case.name: case for cases in (_products, _others) for case in cases()}


def n_pages(batches: Iterable[Batch]) -> int:
    """Pages that a case needs."""
    return 1 + max(int(batch.pages.max()) for batch in batches)


class DryDevice:
    """A Device that notes what is launched, and computes nothing."""

    name = "dry"
    bandwidth = None
    kernels = KERNELS

    def __init__(self, kernels_for: int = 90, n_processors: int = 132, shared_bytes: int = 227 << 10) -> None:
        self.architecture = self.kernels_for = kernels_for
        self.level = f"sm_{kernels_for}"
        self.n_processors, self.shared_bytes = n_processors, shared_bytes
        self.launched: set[str] = set()
        self._next = 256

    def memory(self) -> tuple[int, int]:
        return 1 << 36, 1 << 36

    def allocate(self, n_bytes: int) -> Address:
        self._next += -(-n_bytes // 256) * 256
        return Address(self._next - -(-n_bytes // 256) * 256)

    def launch(self, kernel: str, *_: Any) -> None:
        self.launched.add(kernel)

    def _nothing(self, *_: Any) -> None:
        pass

    free = upload = send = zero = wait = prepare = close = _nothing

    def download(self, address: Address, out: np.ndarray) -> None:
        out[...] = 0


def kernels_of(case: Case, device: DryDevice) -> frozenset[str]:
    """The kernels that a case launches on a GPU like that."""
    device.launched = set()
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        batches = case.batches()
        most = max(256, *(batch.n_rows for batch in batches))
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors, case.kv_type, most)
        pages = n_pages(batches)
        state = program.new_state(pages, 2 * max(pages, N_PAGES))
        for batch in batches:
            program.run(batch, state)
    return frozenset(device.launched)


def fewest(kernels: dict[str, frozenset[str]], wanted: Iterable[str]) -> list[str]:
    """Cases that together launch all that is wanted and that any launches: again and again the one that adds most."""
    left, chosen = set(wanted), []
    while kernels and (best := max(kernels, key=lambda name: len(kernels[name] & left))) and kernels[best] & left:
        chosen.append(best)
        left -= kernels[best]
    return chosen


def chosen(device: DryDevice, prefixes: tuple[str, ...], there: Iterable[str]) -> list[str]:
    """Few cases that launch all kernels, of those that are there, whose names begin so."""
    cases = all_cases()
    kernels = {name: kernels_of(case, device) for name, case in cases.items()}
    return fewest(kernels, (name for name in there if name.startswith(prefixes)))


class Launched:
    """While it lives, the names of all kernels that are launched."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __enter__(self) -> set[str]:
        launch = CudaDevice.launch

        def noted(device: CudaDevice, kernel: str, *rest: Any, **options: Any) -> None:
            self.names.add(kernel)
            launch(device, kernel, *rest, **options)

        self._patches = (patch.object(CudaDevice, "launch", noted), patch.object(graph_runner, "_MAX_GRAPH_ROWS", 0))
        for one in self._patches:
            one.start()
        return self.names

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


def run_case(backend: CudaBackend, name: str) -> None:
    """All runs of a case. The results are those of `ops`, which compares them."""
    case = all_cases()[name]
    batches = case.batches()
    most, pages = max(256, *(batch.n_rows for batch in batches)), n_pages(batches)
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        program = backend.compile(case.plan(file), file.tensors, Options(kv_type=case.kv_type, max_rows=most))
        state = program.new_state(pages, 2 * max(pages, N_PAGES))
        for batch in batches:
            program.run(batch, state)
        program.close()
