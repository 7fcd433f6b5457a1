"""THE case table: every op that a backend computes, with the shapes and types that have broken kernels before.

A case is a tiny model: tables of random rows that tokens pick from, then the op. Every backend and kernel level runs
all of them against the reference; `expected` says what must come out and how far from it a backend may lie.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Literal

import numpy as np

from tests.cases.arithmetic import SLACK, linear_bound, rounded_to_cache
from tests.cases.moe import MOES, moe_bound
from tests.cases.weights import BLOCKS_32, BLOCKS_256, FLOATS, TYPES, Raw, random_vector, random_weight, rows_of
from woolly.gguf import GGUFFile, GGUFWriter, open_gguf
from woolly.plan import Handle, Plan, Step, Tracer
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.reference.ops import apply_rms_norm

N_TOKENS = 48  # rows of the tables
N_PAGES = 24
EPS = 1e-5

Run = tuple[tuple[int, int, tuple[int, ...]], ...]  # of each sequence: rows, first position, pages
Make = Callable[[np.random.Generator], dict[str, Raw]]

# Row counts of one batch: a tile of kernels holds 4 rows, and a single row goes its own way.
ROWS: tuple[Run, ...] = tuple(((n, 0, (0,)),) for n in (1, 2, 3, 4, 5, 9))


class CaseTracer(Tracer):
    """Takes widths from the tensors: cases have no metadata."""

    def embed(self, table: str, *, width: int | None = None) -> Handle:
        return super().embed(table, width=self._matrix(table).shape[1] if width is None else width)

    def linear(self, x: Handle, name: str) -> Handle:
        return super().linear(x, name, width=self.rows(name))


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    op: str  # of the fused plan
    make: Make  # the file's tensors
    build: Callable[[CaseTracer], Handle]
    check: Literal["exact", "close", "near", "linears", "heads", "moe", "attend", "scan"]
    runs: tuple[Run, ...] = ROWS
    kv_type: str = "f32"

    def tensors(self) -> dict[str, Raw]:
        return dict(_tensors(self))

    def open(self, folder: Path) -> GGUFFile:
        writer = GGUFWriter(folder / "case.gguf")
        for name, raw in self.tensors().items():
            writer.add_raw_tensor(name, raw.type, raw.shape, raw.data)
        writer.write()
        return open_gguf(writer.path)

    def plan(self, file: GGUFFile) -> Plan:
        tracer = CaseTracer("case", file.tensors)
        tracer.output(self.build(tracer))
        return tracer.plan()

    def batches(self) -> list[Batch]:
        tokens = np.random.default_rng(zlib.crc32(b"tokens")).integers(0, N_TOKENS, 4096)
        batches = []
        for r, run in enumerate(self.runs):
            sequences = [
                (tokens[100 * i + first : 100 * i + first + n], first, list(pages))
                for i, (n, first, pages) in enumerate(run)
            ]
            # A sequence has two slots by its first page, in turn; it takes part in runs that follow each other.
            pairs = [(at + N_PAGES * (r % 2 ^ 1), at + N_PAGES * (r % 2)) for _, _, (at, *_) in run]
            slots = [(a if first else -1, b) for (a, b), (_, first, _) in zip(pairs, run, strict=True)]
            batches.append(Batch.of(sequences, range(0, sum(n for n, _, _ in run), 2), slots=slots))
        return batches


@functools.lru_cache(maxsize=1)
def _tensors(case: Case) -> dict[str, Raw]:
    """Kept for the one who asks next: they take longer to make than a run."""
    return case.make(np.random.default_rng(zlib.crc32(case.name.encode())))


def run(case: Case, program) -> np.ndarray:
    """All runs of a case, one after another over one cache."""
    state = program.new_state(N_PAGES, 2 * N_PAGES)
    return np.concatenate([program.run(batch, state).copy() for batch in case.batches()])


def expected(case: Case, file: GGUFFile) -> tuple[np.ndarray, np.ndarray]:
    """Result of the reference with K and V stored in the cache type, and its error bound."""
    plan = fuse(case.plan(file))
    program = get_backend("reference").compile(plan, file.tensors, Options())
    tensors = case.tensors()
    state, parts, bounds = program.new_state(N_PAGES, 2 * N_PAGES), [], []
    stores = [i + 1 for i, step in enumerate(plan.steps[:-1]) if step.op in ("store", "cache_rows")]
    for batch in case.batches():
        for first, last in zip([0, *stores], [*stores, len(plan.steps)], strict=True):
            before = [cache.copy() for cache, _, _ in _caches(case, state)]
            value = program.run(batch, state, first, last)
            if last in stores:
                queries = value
                for (cache, kv_type, inside), old in zip(_caches(case, state), before, strict=True):
                    new = (cache != old).any(axis=-1)  # what is kept in 4 bits would be rounded once more
                    if new.any():  # or the step stores another entry
                        cache[new] = rounded_to_cache(cache[new], kv_type, inside)
        parts.append(value)
        if case.check == "attend":
            bounds.append(_attend_bound(plan.steps[-1], queries, state, value))
        elif case.check == "linears":
            bounds.append(_linears_bound(plan, tensors, batch, value))
        elif case.check == "heads":
            bounds.append(_heads_bound(tensors, _input(plan, tensors, batch, plan.steps[-1].inputs[0])))
        elif case.check == "moe":
            x, *residual = (_input(plan, tensors, batch, v) for v in plan.steps[-1].inputs)
            given = tensors["table.weight"].values()[batch.tokens] if "table.weight" in tensors else None
            bounds.append(moe_bound(plan.steps[-1], tensors, x, residual[0] if residual else None, given))
        elif case.op == "glu" and case.check == "close":
            # exp is right to 2e-7, and stops at exp(88).
            gate, up = (_input(plan, tensors, batch, v).astype(np.float64) for v in plan.steps[-1].inputs)
            bounds.append(1e-6 * np.abs(value) + 7e-39 * np.abs(gate * up))
        elif case.check == "scan":  # sums over a state that began many rows ago
            bounds.append(np.full(value.shape, 1e-5 * np.abs(value).max()))
        elif case.check == "near":  # near 0 what is left of larger numbers
            bounds.append(1e-6 * np.abs(value) + 2e-6)
        else:
            bounds.append((0.0 if case.check == "exact" else 1e-6) * np.abs(value).astype(np.float64))
    return np.concatenate(parts), np.concatenate(bounds)


def _caches(case: Case, state) -> list[tuple[np.ndarray, str, bool]]:
    """Each array of K or V with its type, and whether it holds V within K."""
    k_type, _, v_type = case.kv_type.partition("/")
    inside = any(v.base is not None for v in state.v.values())  # a view of K
    keys = [(k, k_type, inside) for k in state.k.values()]
    return keys + [(v, v_type or k_type, False) for v in state.v.values() if v.base is None]


def _input(plan: Plan, tensors: dict[str, Raw], batch: Batch, value: int) -> np.ndarray:
    (step,) = (step for step in plan.steps if step.outputs == (value,))
    return tensors[step.weights[0].name].values()[batch.tokens]


def _linears_bound(plan: Plan, tensors: dict[str, Raw], batch: Batch, y: np.ndarray) -> np.ndarray:
    step = plan.steps[-1]
    x, *residual = (_input(plan, tensors, batch, value) for value in step.inputs)
    for weight in step.by_role("norm"):
        x = apply_rms_norm(x, tensors[weight.name].values(), step.number("eps"))
    matrices: list[Raw] = []
    biases: list[np.ndarray] = []
    for weight, role in zip(step.weights, step.text("roles").split(), strict=True):
        if role == "weight":
            matrices.append(rows_of(tensors[weight.tensor], weight))
            biases.append(np.zeros(weight.shape[0]))
        elif role == "bias":
            biases[-1] = rows_of(tensors[weight.tensor], weight).values().astype(np.float64)
    pairs = list(zip(matrices, biases, strict=True))
    bounds = [linear_bound(x, matrix) + SLACK * np.abs(bias) for matrix, bias in pairs]
    if step.text("epilogue").startswith("glu:"):
        gate, up = (x.astype(np.float64) @ m.values().T.astype(np.float64) + b for m, b in pairs)
        # silu lies between -0.28 and its argument; its slope is at most 1.1.
        (d_gate, d_up), silu = bounds, np.maximum(gate, 0.28)
        return 1.1 * d_gate * (np.abs(up) + d_up) + silu * d_up + SLACK * np.abs(y)
    return abs(step.number("scale")) * bounds[-1] + SLACK * np.abs(residual[0] if residual else 0.0)


def _heads_bound(tensors: dict[str, Raw], x: np.ndarray) -> np.ndarray:
    weight = tensors["w.weight"]
    if len(weight.shape) == 2:  # one matrix holds those of all heads
        n = x.shape[1] // weight.shape[1]
        weight = replace(weight, shape=(n, weight.shape[0] // n, weight.shape[1]))
    heads, parts = (np.split(y, weight.shape[0], axis=axis) for y, axis in ((x, 1), (weight.data, 0)))
    matrices = (Raw(weight.type, weight.shape[1:], part.reshape(weight.shape[1], -1)) for part in parts)
    return np.concatenate([linear_bound(*pair) for pair in zip(heads, matrices, strict=True)], axis=1)


def _attend_bound(step: Step, q: np.ndarray, state, y: np.ndarray) -> np.ndarray:
    # The bound of a score is relative to |q| |k|; weights of the softmax are off by the exp of twice that.
    head_dim, entry = step.integer("head_dim"), step.integer("entry")
    growth = 1 + step.number("temper") * 6
    longest = [np.linalg.norm(a.reshape(-1, head_dim), axis=-1).max() for a in (q, state.k[entry])]
    score = 1e-6 * step.number("scale") * growth * longest[0] * longest[1]
    return np.full(y.shape, np.expm1(2 * score + 1e-6) * np.abs(state.v[entry]).max())


def _tables(**widths: int) -> Make:
    return lambda rng: {f"{name}.weight": random_weight(rng, GGMLType.F32, N_TOKENS, n) for name, n in widths.items()}


def _both(*makes: Make) -> Make:
    return lambda rng: {name: raw for make in makes for name, raw in make(rng).items()}


def _matrix(name: str, type: GGMLType, rows: int, columns: int, bias: bool = False) -> Make:
    def make(rng: np.random.Generator) -> dict[str, Raw]:
        out = {f"{name}.weight": random_weight(rng, type, rows, columns)}
        return out | ({f"{name}.bias": random_vector(rng, rows)} if bias else {})

    return make


def _vector(name: str, n: int, around: float = 1.0) -> Make:
    return lambda rng: {f"{name}.weight": random_vector(rng, n, around)}


def _large(rng: np.random.Generator) -> dict[str, Raw]:
    """Numbers far beyond where exp overflows, of either sign."""
    rows = np.linspace(-300, 300, N_TOKENS * 40, dtype=np.float32) ** 3
    return {name: replace(raw, data=rows.view(np.uint8)) for name, raw in _tables(a=40, b=40)(rng).items()}


def _norm(p: CaseTracer) -> Handle:
    return p.rms_norm(p.embed("x"), "norm", eps=EPS)


def _linear(p: CaseTracer) -> Handle:
    return p.linear(p.embed("x"), "w")


def _embeds() -> Iterator[Case]:
    for type in TYPES:
        for columns in {1: (1, 7, 70), 32: (32, 96, 576), 64: (64, 192, 576), 256: (256, 768)}[type.block_size]:
            name = f"embed-{type.name}-{columns}"
            yield Case(name, "embed", _matrix("table", type, N_TOKENS, columns), lambda p: p.embed("table"), "exact")


def _simple() -> Iterator[Case]:
    for n, groups in ((1, 1), (5, 1), (15, 3), (16, 2), (17, 1), (33, 2), (100, 1), (576, 1)):
        make = _both(_tables(x=n * groups), _vector("norm", n))
        yield Case(f"rms_norm-{n}x{groups}", "rms_norm", make, _norm, "close")
    for n in (1, 5, 15, 16, 17, 33, 100):
        two = _tables(a=n, b=n)
        yield Case(f"add-{n}", "add", two, lambda p: p.embed("a") + p.embed("b"), "exact")
        yield Case(f"glu-{n}", "glu", two, lambda p: p.glu(p.embed("a"), p.embed("b")), "close")
        yield Case(f"scale-{n}", "scale", _tables(x=n), lambda p: p.embed("x") * 0.22, "exact")
        yield Case(f"output_rows-{n}", "output_rows", _tables(x=n), lambda p: p.output_rows(p.embed("x")), "exact")
    yield Case("glu-large", "glu", _large, lambda p: p.glu(p.embed("a"), p.embed("b")), "close")


def _plain_linears() -> Iterator[Case]:
    shapes = [(t, rows, n * t.block_size) for t in BLOCKS_32 for rows, n in ((1, 1), (16, 1), (17, 3), (40, 18))]
    shapes += [(type, rows, n) for type in BLOCKS_256 for rows, n in ((1, 256), (17, 512), (40, 768))]
    shapes += [(GGMLType.F32, rows, n) for n, rows in zip(range(1, 71), cycle((1, 5, 16, 17, 33)), strict=False)]
    shapes += [(type, 17, n) for type in FLOATS[1:] for n in (1, 2, 3, 4, 5, 16, 31, 64, 70, 576)]
    for type, rows, columns in shapes:
        make = _both(_tables(x=columns), _matrix("w", type, rows, columns))
        yield Case(f"linears-{type.name}-{rows}x{columns}", "linears", make, _linear, "linears")


def _fused_linears() -> Iterator[Case]:
    def scale_residual(p: CaseTracer) -> Handle:
        x, r = p.embed("x"), p.embed("r")
        return r + p.linear(x, "w") * 0.22

    def norm_glu(p: CaseTracer) -> Handle:
        h = _norm(p)
        return p.glu(p.linear(h, "gate"), p.linear(h, "up"))

    def glu(p: CaseTracer) -> Handle:
        x = p.embed("x")
        return p.glu(p.linear(x, "gate"), p.linear(x, "up"))

    def several(p: CaseTracer) -> Handle:
        h = _norm(p)
        p.linear(h, "first")
        p.linear(h, "second")
        return p.linear(h, "w")

    t = GGMLType
    for type, n in ((t.F32, 70), (t.F16, 33), (t.Q4_0, 96), (t.Q5_1, 96), (t.Q8_0, 96), (t.Q4_K, 256), (t.Q2_K, 512)):
        x, weighted, name = _tables(x=n), _vector("norm", n), f"{type.name}-{n}"
        yield Case(
            f"linears-norm-{name}",
            "linears",
            _both(x, weighted, _matrix("w", type, 40, n)),
            lambda p: p.linear(_norm(p), "w"),
            "linears",
        )
        yield Case(f"linears-bias-{name}", "linears", _both(x, _matrix("w", type, 23, n, True)), _linear, "linears")
        make = _both(_tables(x=n, r=23), _matrix("w", type, 23, n, True))
        yield Case(f"linears-bias-scale-residual-{name}", "linears", make, scale_residual, "linears")
        make = _both(x, _matrix("gate", type, 37, n), _matrix("up", type, 37, n))
        yield Case(f"linears-glu-{name}", "linears", make, glu, "linears")
    # Weights of several types in one step: their activations are quantized per 32, per 256, or not.
    for first, second, third in (
        (t.Q4_K, t.Q6_K, t.Q8_0),
        (t.Q5_0, t.F16, t.Q4_K),
        (t.BF16, t.Q4_1, t.Q3_K),
        (t.IQ4_XS, t.MXFP4, t.F32),
        (t.Q4_K, t.Q5_K, t.Q2_K),
    ):
        weighted, name = _both(_tables(x=256), _vector("norm", 256)), f"{first.name}-{second.name}-{third.name}"
        # The value that comes back is the last one's: each type has its turn.
        for one, two, last in ((first, second, third), (second, third, first), (third, first, second)):
            matrices = (_matrix("first", one, 40, 256, True), _matrix("second", two, 8, 256))
            make = _both(weighted, *matrices, _matrix("w", last, 24, 256, True))
            yield Case(f"linears-several-{name}-{last.name}", "linears", make, several, "linears")
        for gate, up in ((first, second), (second, third), (third, first)):
            make = _both(weighted, _matrix("gate", gate, 37, 256, True), _matrix("up", up, 37, 256, True))
            yield Case(f"linears-mixed-glu-{name}-{gate.name}", "linears", make, norm_glu, "linears")


def _moes() -> Iterator[Case]:
    for name, experts in MOES.items():
        # The last run has enough rows for each expert that its panels are opened.
        runs = (*ROWS, ((90, 0, (0, 1, 2)),))
        yield Case(f"moe-{name}", "moe", lambda rng, e=experts: e.make(rng, N_TOKENS), experts.build, "moe", runs)


CASES = {case.name: case for cases in (_embeds, _simple, _plain_linears, _fused_linears, _moes) for case in cases()}
