"""Checks of the CUDA backend on a real GPU: each a name and a function that raises AssertionError.

test_real.py runs them by `pytest -m gpu tests/runtime/cuda`, scripts/gpu without pytest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

import tests.cases.ops
from tests.cases.arithmetic import linear_bound
from tests.cases.moe import Experts
from tests.cases.ops import N_TOKENS, Case, expected, run
from tests.cases.scans import ALL
from tests.cases.tiny import TINY, write_tiny
from tests.cases.weights import Raw
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend, pages_for
from woolly.runtime.cuda.backend import CudaBackend
from woolly.runtime.cuda.device import open_device
from woolly.runtime.gpu import graph_runner
from woolly.runtime.gpu.batch import BATCH
from woolly.runtime.gpu.top_k import Ranker

Check = tuple[str, Callable[[], None]]

ROWS = (1, 2, 7, 8, 9, 16, 33, 64, 65, 128, 513)
LLAMA = TINY["llama"]
WIDE = replace(LLAMA, width=512, ffn=1024, head_dim=64, n_layers=2)
# Each with a type of weights, and of the cache.
MODELS = {
    "F32": (LLAMA, "f32"),
    "F16": (replace(LLAMA, type=GGMLType.F16), "f16"),
    "Q4_0": (replace(LLAMA, type=GGMLType.Q4_0), "f16"),
    "Q8_0": (replace(LLAMA, type=GGMLType.Q8_0), "q8_0"),
    "Q4_K": (replace(WIDE, type=GGMLType.Q4_K), "f16"),
    "Q6_K": (replace(WIDE, type=GGMLType.Q6_K), "f16"),
    "granite": (replace(TINY["granite"], type=GGMLType.Q8_0), "f16"),
    "qwen2": (replace(TINY["qwen2"], type=GGMLType.Q5_0), "f16"),
    "qwen3": (replace(TINY["qwen3"], type=GGMLType.Q4_1), "q8_0"),
}
TOKENS = np.random.RandomState(7).randint(0, 264, 513)
N_PAGES = 3 * pages_for(513)


def ops(backend: CudaBackend, prefixes: tuple[str, ...] = ("",)) -> Iterator[Check]:
    """Every case of the case table lies within its bound of the reference."""
    for name in ALL:
        if name.startswith(prefixes):
            yield name, partial(_case, backend, name)


def _case(backend: CudaBackend, name: str) -> None:
    case = ALL[name]
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        with patch.object(tests.cases.ops, "linear_bound", _products_bound):
            want, bound = expected(case, file)
        program = backend.compile(case.plan(file), file.tensors, Options(kv_type=case.kv_type))
        got = run(case, program)
    if case.check == "attend" and case.kv_type != "f32":
        bound = bound + _halves_bound(case, case.plan)
    if case.check == "exact":
        np.testing.assert_array_equal(got, want)
    error = np.abs(got.astype(np.float64) - want)
    if case.check == "moe":  # as test_experts.py compares: sums of experts cancel
        away, length = np.linalg.norm(error), np.linalg.norm(want)
        assert away <= 2e-3 * length, f"{away:.1e} away from a result as long as {length:.1e}"
        return
    worst = np.unravel_index(np.argmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, expected {want[worst]} within {bound[worst]}"


def _products_bound(x: np.ndarray, weight: Raw) -> np.ndarray:
    """Activations and weights of halves have 11 bits; matrices of f32 lose nothing."""
    products = np.abs(x.astype(np.float64)) @ np.abs(weight.values().astype(np.float64)).T
    return linear_bound(x, weight) + (0.0 if weight.type == GGMLType.F32 else 2.0**-10) * products


def _halves_bound(case, plan) -> float:
    """Error bound of tensor cores: q, q8_0 cache values and exp weights have 11 bits."""
    tables = case.tensors()
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        step = plan(file).steps[-1]
    q, k = (np.linalg.norm(tables[f"{n}.weight"].values().reshape(-1, step.integer("head_dim")), axis=1) for n in "qk")
    score = step.number("scale") * (1 + 6 * step.number("temper")) * q.max() * k.max() * 2.0**-11
    values = tables["v.weight" if "v.weight" in tables else "k.weight"].values()
    return float(np.expm1(2 * score + 2.0**-10) * np.abs(values).max())


def rows(backend: CudaBackend, counts: tuple[int, ...] = ROWS) -> Iterator[Check]:
    """A token has the same bits whatever it is computed with, as a graph or not, and lies near the reference."""
    for name in MODELS:
        yield f"rows-{name}", partial(_rows, backend, name, counts)
    for type in (GGMLType.Q4_K, GGMLType.Q8_0, GGMLType.F16):
        yield f"rows-experts-{type.name}", partial(_experts, backend, type, counts)


def _experts(backend: CudaBackend, type: GGMLType, counts: tuple[int, ...]) -> None:
    """Rows of a mixture: kernels for one row, for few and for many of each expert, each run twice."""
    experts = Experts(8, 2, (type,) * 3, 256, 512, norm=True, residual=True)
    case = Case("experts", "moe", lambda rng: experts.make(rng, N_TOKENS), experts.build, "moe")
    most = max(counts)

    def rows_of(program, n: int) -> np.ndarray:
        batch = Batch.of([(np.arange(n) % N_TOKENS, 0, range(pages_for(most)))], [])
        return program.run(batch, program.new_state(pages_for(most))).copy()

    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as file:
        plan = case.plan(file)
        want = rows_of(get_backend("reference").compile(plan, file.tensors, Options(max_rows=most)), most)
        program = backend.compile(plan, file.tensors, Options(max_rows=most))
        whole = rows_of(program, most)
        assert np.linalg.norm(whole - want) <= 2e-3 * np.linalg.norm(want), "far from the reference"
        for n in (*counts, *counts):
            differ = (rows_of(program, n).view(np.uint32) != whole[:n].view(np.uint32)).any(axis=1)
            assert not differ.any(), f"of {n} rows {differ.sum()} differ, first {np.argmax(differ)}"
        program.close()


def _rows(backend: CudaBackend, name: str, counts: tuple[int, ...]) -> None:
    tiny, kv_type = MODELS[name]
    tokens = TOKENS[: max(counts)]
    with tempfile.TemporaryDirectory() as folder:
        file = open_gguf(write_tiny(tiny, Path(folder) / "tiny.gguf"))
        plan = trace(file)
        program = backend.compile(plan, file.tensors, Options(kv_type=kv_type, max_rows=max(128, *counts)))
        whole = _logits(program, tokens, len(tokens))
        reference = get_backend("reference").compile(plan, file.tensors, Options())
        want = _logits(reference, tokens, len(tokens))
        error = np.abs(whole - want).max() / np.abs(want).max()
        assert error < 0.02, f"{error:.4f} from the reference"
        for n_rows in counts:
            got = _logits(program, tokens, n_rows)
            differ = (got.view(np.uint32) != whole.view(np.uint32)).any(axis=1)
            assert not differ.any(), f"in runs of {n_rows} rows {differ.sum()} differ, first {np.argmax(differ)}"
        _mixed(program, tokens, whole)
        before = graph_runner._MAX_GRAPH_ROWS
        graph_runner._MAX_GRAPH_ROWS = 0
        try:
            eager = _logits(program, tokens[:40], 5)
        finally:
            graph_runner._MAX_GRAPH_ROWS = before
        assert np.array_equal(eager, whole[:40]), "graphs give other bits than single launches"
        file.close()


def _logits(program, tokens: np.ndarray, n_rows: int) -> np.ndarray:
    """Logits of all tokens, computed in runs of n rows over scattered pages."""
    state, parts = program.new_state(N_PAGES), []
    pages = np.random.RandomState(n_rows).permutation(N_PAGES)[: pages_for(len(tokens))]
    for first in range(0, len(tokens), n_rows):
        part = tokens[first : first + n_rows]
        parts.append(program.run(Batch.of([(part, first, pages)], range(len(part))), state).copy())
    return np.concatenate(parts)


def _mixed(program, tokens: np.ndarray, whole: np.ndarray) -> None:
    """Three sequences of one text, each at a place of its own, in batches of all sizes."""
    state, done = program.new_state(N_PAGES), [0, 0, 0]
    for counts in ((20, 1, 0), (1, 5, 3), (1, 1, 1), (40, 1, 7), (1, 60, 1)):
        parts = [(s, min(n, len(tokens) - done[s])) for s, n in enumerate(counts) if n and done[s] < len(tokens)]
        if not parts:
            return
        batch = Batch.of(
            [(tokens[done[s] : done[s] + n], done[s], range(s, N_PAGES, 3)) for s, n in parts],
            range(sum(n for _, n in parts)),
        )
        got = program.run(batch, state)
        want = np.concatenate([whole[done[s] : done[s] + n] for s, n in parts])
        assert np.array_equal(got, want), f"a batch of {parts} differs"
        for s, n in parts:
            done[s] += n


def ranks(backend: CudaBackend) -> Iterator[Check]:
    """The largest logits of rows as wide as vocabularies are, against NumPy; alone and together."""
    for width in (32000, 49155, 151936, 262144):
        yield f"ranks-{width}", partial(_ranks, width)


def _ranks(width: int) -> None:
    device = open_device()
    logits = np.random.RandomState(width).standard_normal((130, width)).astype(np.float32) * 3
    logits[1] = np.round(logits[1])
    logits[2] = 0.0
    logits[3, 300:] = -np.inf
    logits[4, width - 1] = np.nan
    struct = np.zeros(1, BATCH)
    struct["n_output"] = len(logits)
    batch, place = device.allocate(struct.nbytes), device.allocate(logits.nbytes)
    device.upload(batch, struct)
    device.upload(place, logits)
    ranker, alone = (Ranker(device, batch, place + 4 * at * width, width, 130 - at) for at in (0, 129))
    sums = []
    for n in (1, 64, 256):
        heads = ranker.queue(n, len(logits))
        device.wait()
        heads = heads.copy()
        assert heads["is_sound"].tolist() == [1, 1, 1, 1, 0] + [1] * 125
        for i in (*range(4), *range(5, 130, 1 if n == 1 else 25)):
            places = np.argsort(-logits[i], kind="stable")[:n] if n > 1 else logits[i].argmax()[None]
            assert np.array_equal(heads[i]["ids"], places), f"row {i}, {n} of {width}"
            assert np.array_equal(heads[i]["logits"], logits[i, places])
        sums.append(heads["sum"].copy())
        one = alone.queue(n, 1)
        device.wait()
        assert one[0].tobytes() == heads[129].tobytes(), "a row alone differs"
    assert sums[0].tobytes() == sums[1].tobytes() == sums[2].tobytes()
    exact = np.exp(logits[[0, 1, 129]].astype(np.float64) - logits[[0, 1, 129]].max(axis=1, keepdims=True)).sum(axis=1)
    np.testing.assert_allclose(sums[0][[0, 1, 129]], exact, rtol=1e-13)
    device.close()


def engine(backend: CudaBackend) -> Iterator[Check]:
    """200 requests of all kinds give together what they give alone."""
    for chunk in (16, 512):
        yield f"engine-{chunk}", partial(_engine, backend, chunk)


def _engine(backend: CudaBackend, chunk: int) -> None:
    from tests.engine.test_batching import CTX, N_REQUESTS, cases, drive, result, same
    from woolly.engine import Engine
    from woolly.tokens import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        file = open_gguf(write_tiny(LLAMA, Path(folder) / "tiny.gguf"))
        program = backend.compile(trace(file), file.tensors, Options())
        tokenizer = Tokenizer.from_metadata(file.metadata)
        together = Engine(program, tokenizer, ctx=CTX, kv_tokens=20 * CTX, chunk=chunk, max_running=6)
        order = np.random.RandomState(chunk).permutation(N_REQUESTS).tolist()
        requests = drive(together, order, chunk)
        for i, request in requests.items():
            alone = drive(Engine(program, tokenizer, ctx=CTX), [i], 0)[i]
            same(result(request), result(alone), cases()[i])
        file.close()
