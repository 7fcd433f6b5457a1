"""THE case table: every op that a backend computes, with the shapes and types that have broken kernels before.

A case is a tiny model: tables of random rows that tokens pick from, then the op. Every backend and kernel level runs
all of them against the reference; `expected` says what must come out and how far from it a backend may lie.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Literal

import numpy as np

from tests.cases.arithmetic import SLACK, linear_bound, rounded_to_cache
from tests.cases.moe import MOES, moe_bound
from tests.cases.weights import BLOCKS_32, BLOCKS_256, FLOATS, TYPES, Raw, random_vector, random_weight
from woolly.gguf import GGMLType, GGUFFile, GGUFWriter, open_gguf
from woolly.plan import Handle, Plan, Rope, Step, Tracer
from woolly.plan.passes import fuse
from woolly.runtime import Batch, Options, choose
from woolly.runtime.reference_ops import apply_rms_norm

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
    check: Literal["exact", "close", "linears", "moe", "attend"]
    runs: tuple[Run, ...] = ROWS
    kv_type: str = "f32"

    def tensors(self) -> dict[str, Raw]:
        return self.make(np.random.default_rng(zlib.crc32(self.name.encode())))

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
        for run in self.runs:
            sequences = [
                (tokens[100 * i + first : 100 * i + first + n], first, list(pages))
                for i, (n, first, pages) in enumerate(run)
            ]
            n_rows = sum(n for n, _, _ in run)
            batches.append(Batch.of(sequences, range(0, n_rows, 2)))
        return batches


def run(case: Case, program) -> np.ndarray:
    """All runs of a case, one after another over one cache."""
    state = program.new_state(N_PAGES)
    return np.concatenate([program.run(batch, state).copy() for batch in case.batches()])


def expected(case: Case, file: GGUFFile) -> tuple[np.ndarray, np.ndarray]:
    """What the reference gives, keeping K and V as the cache's type does, and the bound of the error."""
    plan = fuse(case.plan(file))
    program = choose("reference").compile(plan, file.tensors, Options())
    state, parts, bounds = program.new_state(N_PAGES), [], []
    stores = [i + 1 for i, step in enumerate(plan.steps) if step.op == "store"]
    for batch in case.batches():
        for first, last in zip([0, *stores], [*stores, len(plan.steps)], strict=True):
            value = program.run(batch, state, first, last)
            if last in stores:
                queries = value
                for cache in (*state.k, *state.v):
                    cache[:] = rounded_to_cache(cache, case.kv_type)
        parts.append(value)
        if case.check == "attend":
            bounds.append(_attend_bound(plan.steps[-1], queries, state, value))
        elif case.check == "linears":
            bounds.append(_linears_bound(plan, case.tensors(), batch, value))
        elif case.check == "moe":
            x, *residual = (_input(plan, case.tensors(), batch, v) for v in plan.steps[-1].inputs)
            bounds.append(moe_bound(plan.steps[-1], case.tensors(), x, residual[0] if residual else None))
        elif case.op == "swiglu":
            # exp is right to 2e-7, and stops at exp(88).
            gate, up = (_input(plan, case.tensors(), batch, v).astype(np.float64) for v in plan.steps[-1].inputs)
            bounds.append(1e-6 * np.abs(value) + 7e-39 * np.abs(gate * up))
        else:
            bounds.append((0.0 if case.check == "exact" else 1e-6) * np.abs(value).astype(np.float64))
    return np.concatenate(parts), np.concatenate(bounds)


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
            matrices.append(tensors[weight.name])
            biases.append(np.zeros(weight.shape[0]))
        elif role == "bias":
            biases[-1] = tensors[weight.name].values().astype(np.float64)
    pairs = list(zip(matrices, biases, strict=True))
    bounds = [linear_bound(x, matrix) + SLACK * np.abs(bias) for matrix, bias in pairs]
    if step.text("epilogue") == "swiglu":
        gate, up = (x.astype(np.float64) @ m.values().T.astype(np.float64) + b for m, b in pairs)
        # silu lies between -0.28 and its argument; its slope is at most 1.1.
        (d_gate, d_up), silu = bounds, np.maximum(gate, 0.28)
        return 1.1 * d_gate * (np.abs(up) + d_up) + silu * d_up + SLACK * np.abs(y)
    return abs(step.number("scale")) * bounds[-1] + SLACK * np.abs(residual[0] if residual else 0.0)


def _attend_bound(step: Step, q: np.ndarray, state, y: np.ndarray) -> np.ndarray:
    # The bound of a score is relative to |q| |k|; weights of the softmax are off by the exp of twice that.
    head_dim = step.integer("head_dim")
    longest = [np.linalg.norm(a.reshape(-1, head_dim), axis=-1).max() for a in (q, state.k[0])]
    score = 1e-6 * step.number("scale") * longest[0] * longest[1]
    return np.full(y.shape, np.expm1(2 * score + 1e-6) * np.abs(state.v[0]).max())


# Makers of tensors.


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


# The table, by op.


def _norm(p: CaseTracer) -> Handle:
    return p.rms_norm(p.embed("x"), "norm", eps=EPS)


def _linear(p: CaseTracer) -> Handle:
    return p.linear(p.embed("x"), "w")


def _embeds() -> Iterator[Case]:
    for type in TYPES:
        for columns in {1: (1, 7, 70), 32: (32, 96, 576), 256: (256, 768)}[type.block_size]:
            name = f"embed-{type.name}-{columns}"
            yield Case(name, "embed", _matrix("table", type, N_TOKENS, columns), lambda p: p.embed("table"), "exact")


def _simple() -> Iterator[Case]:
    for n, groups in ((1, 1), (5, 1), (15, 3), (16, 2), (17, 1), (33, 2), (100, 1), (576, 1)):
        make = _both(_tables(x=n * groups), _vector("norm", n))
        yield Case(f"rms_norm-{n}x{groups}", "rms_norm", make, _norm, "close")
    for n in (1, 5, 15, 16, 17, 33, 100):
        two = _tables(a=n, b=n)
        yield Case(f"add-{n}", "add", two, lambda p: p.embed("a") + p.embed("b"), "exact")
        yield Case(f"swiglu-{n}", "swiglu", two, lambda p: p.swiglu(p.embed("a"), p.embed("b")), "close")
        yield Case(f"scale-{n}", "scale", _tables(x=n), lambda p: p.embed("x") * 0.22, "exact")
        yield Case(f"output_rows-{n}", "output_rows", _tables(x=n), lambda p: p.output_rows(p.embed("x")), "exact")
    yield Case("swiglu-large", "swiglu", _large, lambda p: p.swiglu(p.embed("a"), p.embed("b")), "close")


def _plain_linears() -> Iterator[Case]:
    shapes = [(type, rows, n) for type in BLOCKS_32 for rows, n in ((1, 32), (16, 32), (17, 96), (40, 576))]
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

    def norm_swiglu(p: CaseTracer) -> Handle:
        h = _norm(p)
        return p.swiglu(p.linear(h, "gate"), p.linear(h, "up"))

    def swiglu(p: CaseTracer) -> Handle:
        x = p.embed("x")
        return p.swiglu(p.linear(x, "gate"), p.linear(x, "up"))

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
        yield Case(f"linears-swiglu-{name}", "linears", make, swiglu, "linears")
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
            yield Case(f"linears-mixed-swiglu-{name}-{gate.name}", "linears", make, norm_swiglu, "linears")


def _moes() -> Iterator[Case]:
    for name, experts in MOES.items():
        # And so many rows that those of an expert open its panels.
        runs = (*ROWS, ((90, 0, (0, 1, 2)),))
        yield Case(f"moe-{name}", "moe", lambda rng, e=experts: e.make(rng, N_TOKENS), experts.build, "moe", runs)


# Contexts that cross pages of 32 and splits of 128, in few rows and in many.
_SHORT: tuple[Run, ...] = (((5, 0, (3,)),), ((1, 5, (3,)),), ((1, 6, (3,)),))
_PAGES: tuple[Run, ...] = (((31, 0, (7, 2)),), ((2, 31, (7, 2)),), ((14, 33, (7, 2)),))
_LONG = tuple(range(10, 0, -1))
_SPLITS: tuple[Run, ...] = (
    ((127, 0, _LONG),),
    ((1, 127, _LONG),),
    ((1, 128, _LONG),),
    ((2, 129, _LONG),),
    ((140, 131, _LONG),),
    ((3, 271, _LONG),),
)
_TOGETHER: tuple[Run, ...] = (
    ((40, 0, (11, 5)), (3, 0, (0,)), (150, 0, (1, 2, 3, 4, 6))),
    ((1, 40, (11, 5)), (2, 3, (0,)), (1, 150, (1, 2, 3, 4, 6))),
    ((1, 151, (1, 2, 3, 4, 6)), (1, 41, (11, 5))),
)


def _attention(
    name: str,
    head_dim: int,
    group: int = 2,
    style: str = "halves",
    kv_type: str = "f32",
    runs: tuple[Run, ...] = _PAGES,
    *,
    kv_heads: int = 2,
    n_rot: int | None = None,
    norms: bool = False,
    divisors: bool = False,
    window: int = 0,
    softcap: float = 0.0,
) -> Case:
    n_rot = head_dim if n_rot is None else n_rot
    width = kv_heads * head_dim

    def build(p: CaseTracer) -> Handle:
        q, k, v = p.embed("q"), p.embed("k"), p.embed("v")
        if norms:
            q, k = p.rms_norm(q, "q_norm", eps=EPS), p.rms_norm(k, "k_norm", eps=EPS)
        if style != "none":
            rope = Rope(head_dim, n_rot, 10000.0, style)  # type: ignore[arg-type]
            q, k = p.rope(q, rope), p.rope(k, rope)
        return p.attention(q, k, v, layer=0, head_dim=head_dim, scale=head_dim**-0.5, window=window, softcap=softcap)

    makes = [_tables(q=group * width, k=width, v=width)]
    if norms:
        makes += [_vector("q_norm", head_dim), _vector("k_norm", head_dim)]
    if divisors:
        makes += [lambda rng: {"rope_freqs.weight": random_vector(rng, n_rot // 2, 3.0)}]
    return Case(f"attend-{name}", "attend", _both(*makes), build, "attend", runs, kv_type)


def _attentions() -> Iterator[Case]:
    groups, styles, contexts = (
        cycle((1, 2, 3, 4, 9)),
        cycle(("adjacent", "halves", "none")),
        cycle((_SHORT, _PAGES, _SPLITS, _TOGETHER)),
    )
    for head_dim in (16, 32, 48, 64, 80, 96, 128):
        for kv_type in ("f32", "f16", "q8_0"):
            if kv_type == "q8_0" and head_dim % 32 != 0:
                continue
            group, style, runs = next(groups), next(styles), next(contexts)
            yield _attention(f"{head_dim}-{kv_type}-group{group}-{style}", head_dim, group, style, kv_type, runs)
    for kv_type in ("f32", "f16", "q8_0"):
        for runs, name in ((_SPLITS, "splits"), (_TOGETHER, "together")):
            yield _attention(f"{name}-{kv_type}", 32, 3, "halves", kv_type, runs)
            for window in (1, 5, 40, 130):
                yield _attention(f"{name}-window{window}-{kv_type}", 32, 2, "adjacent", kv_type, runs, window=window)
            yield _attention(f"{name}-softcap-{kv_type}", 32, 2, "none", kv_type, runs, window=40, softcap=2.0)
    yield _attention("one-kv-head", 64, 9, "halves", "f16", _SPLITS, kv_heads=1)
    for style in ("adjacent", "halves"):
        yield _attention(f"norms-{style}", 48, 2, style, norms=True)
        yield _attention(f"divisors-{style}", 32, 2, style, divisors=True)
        yield _attention(f"part-{style}", 64, 2, style, n_rot=24)


CASES = {
    case.name: case
    for cases in (_embeds, _simple, _plain_linears, _fused_linears, _moes, _attentions)
    for case in cases()
}
