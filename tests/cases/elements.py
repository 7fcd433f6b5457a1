"""Cases of activations, gates, norms, products and whole texts: the rest of the case table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

import numpy as np

from tests.cases.ops import EPS, ROWS, Case, CaseTracer, Make, Run, _both, _matrix, _tables, _vector
from tests.cases.weights import Raw, random_weight
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.ops.basic import Act, Gate
from woolly.plan.ops.text_encoder import Pool
from woolly.quant import GGMLType

_SIZES = (1, 5, 16, 17, 100)


def _activations() -> Iterator[Case]:
    for n in _SIZES:
        for kind in get_args(Act)[:-1]:  # the last is the cpu backend's alone
            yield Case(f"unary-{kind}-{n}", "unary", _tables(x=n), lambda p, k=kind: p.unary(p.embed("x"), k), "near")
        for act in get_args(Gate)[1:-1]:
            two = _tables(a=n, b=n)
            yield Case(f"glu-{act}-{n}", "glu", two, lambda p, a=act: p.glu(p.embed("a"), p.embed("b"), a), "near")
        for limit in (0.1, 7.0):
            bounded = lambda p, m=limit: p.glu(p.embed("a"), p.embed("b"), limit=m)  # noqa: E731
            yield Case(f"glu-limit-{limit}-{n}", "glu", _tables(a=n, b=n), bounded, "near")
        yield Case(f"softcap-{n}", "softcap", _tables(x=n), lambda p: p.softcap(p.embed("x"), 2.0), "near")
        yield Case(f"clamp-{n}", "clamp", _tables(x=n), lambda p: p.clamp(p.embed("x"), 0.5), "exact")
        yield Case(f"clip-{n}", "clip", _tables(x=n), lambda p: p.clip(p.embed("x"), -0.25, 0.5), "exact")
        yield Case(f"xielu-{n}", "xielu", _tables(x=n), _xielu, "near")


def _xielu(p: CaseTracer) -> Handle:
    return p.xielu(p.embed("x"), alpha_p=0.9, alpha_n=1.2, beta=0.5, eps=-1e-6)


def _products() -> Iterator[Case]:
    for first, width in ((0, 16), (5, 20), (39, 1)):
        some = lambda p, f=first, w=width: p.slice(p.embed("x"), first=f, width=w)  # noqa: E731
        yield Case(f"slice-{first}-{width}", "slice", _tables(x=40), some, "exact")
    runs = lambda p: p.split(p.embed("x"), 3, 2, 5, groups=4)[2]  # noqa: E731
    yield Case("slice-runs", "slice", _tables(x=40), runs, "exact")
    for n, shared in ((5, False), (1, False), (3, True)):
        concat = lambda p, n=n, s=shared: p.concat(p.embed("a"), p.embed("b"), heads=n, shared=s)  # noqa: E731
        yield Case(f"concat-{n}-{'shared' if shared else 'own'}", "concat", _tables(a=30, b=25), concat, "exact")
    for n, groups in ((1, 1), (5, 3), (16, 2), (33, 1), (64, 4)):
        wide = _tables(a=n * groups, b=groups)
        yield Case(f"mul-{n}x{groups}", "mul", wide, lambda p: p.embed("a") * p.embed("b"), "exact")
        make = _both(_tables(x=n * groups), _vector("w", n))
        yield Case(f"mul_weight-{n}x{groups}", "mul_weight", make, lambda p: p.mul_weight(p.embed("x"), "w"), "exact")
        runs = lambda p, g=groups: p.mul_weight(p.embed("x"), "w", run=g)  # noqa: E731
        yield Case(
            f"mul_weight-runs-{n}x{groups}",
            "mul_weight",
            _both(_tables(x=2 * n * groups), _vector("w", n)),
            runs,
            "exact",
        )
        two = _tables(a=n * groups, b=n * groups)
        vecdot = lambda p, n=n: p.vecdot(p.embed("a"), p.embed("b"), group=n)  # noqa: E731
        yield Case(f"vecdot-{n}x{groups}", "vecdot", two, vecdot, "scan")
        mixed = _both(_tables(a=n, b=n), _matrix("w", GGMLType.F32, groups, n))
        yield Case(f"lerp-{n}x{groups}", "lerp", mixed, lambda p: p.lerp(p.embed("a"), p.embed("b"), "w"), "near")
        yield Case(f"add_weight-{n}x{groups}", "add_weight", make, lambda p: p.embed("x") + p.vector("w"), "exact")


def _streams() -> Iterator[Case]:
    for streams, n, plus in ((4, 4, 0.0), (1, 3, 1.0), (2, 1, 0.5)):
        mixed = lambda p, s=streams, b=plus: p.mix_streams(p.embed("x"), p.embed("c"), streams=s, plus=b)  # noqa: E731
        yield Case(f"mix_streams-{streams}-{n}", "mix_streams", _tables(x=20 * streams, c=streams * n), mixed, "near")
    for n in (1, 3):
        matched = lambda p: p.match_rms(p.embed("x"), p.embed("like"), least=1e-5)  # noqa: E731
        yield Case(f"match_rms-{n}", "match_rms", _tables(x=17 * n, like=17), matched, "near")
    for n in (5, 100):
        topk = lambda p: p.gaussian_topk(p.embed("x"), deviations=0.5)  # noqa: E731
        yield Case(f"gaussian_topk-{n}", "gaussian_topk", _tables(x=n), topk, "near")


def _norms() -> Iterator[Case]:
    for n, groups in ((2, 3), (16, 2), (33, 1), (100, 1)):
        x = _tables(x=n * groups)
        make = _both(x, _vector("norm", n))
        yield Case(f"layer_norm-{n}x{groups}", "layer_norm", make, _layer_norm, "near")
        yield Case(f"layer_norm-bias-{n}x{groups}", "layer_norm", _both(make, _bias(n)), _layer_norm, "near")
        own = _both(x, _matrix("norm", GGMLType.F32, groups, n))
        yield Case(f"layer_norm-own-{n}x{groups}", "layer_norm", own, _layer_norm, "near")
        yield Case(f"layer_norm-bare-{n}", "layer_norm", x, lambda p: p.layer_norm(p.embed("x"), eps=EPS), "near")
        some = lambda p, n=n: p.layer_norm(p.embed("x"), eps=EPS, group=n)  # noqa: E731
        yield Case(f"layer_norm-bare-{n}x{groups}", "layer_norm", x, some, "near")
        bare = lambda p, n=n: p.rms_norm(p.embed("x"), eps=EPS, group=n)  # noqa: E731
        yield Case(f"rms_norm-bare-{n}x{groups}", "rms_norm", x, bare, "close")


def _bias(n: int):
    return lambda rng: {"norm.bias": _vector("norm", n, 0.0)(rng)["norm.weight"]}


def _layer_norm(p: CaseTracer) -> Handle:
    return p.layer_norm(p.embed("x"), "norm", eps=EPS)


def _ropes() -> Iterator[Case]:
    for style, n_rot in (("adjacent", 16), ("neox", 16), ("neox", 6)):
        rope = Rope(16, n_rot, 10000.0, style)  # type: ignore[arg-type]
        yield Case(f"rope-{style}-{n_rot}", "rope", _tables(x=48), lambda p, r=rope: p.rope(p.embed("x"), r), "near")


def _views() -> Iterator[Case]:
    """Rows of a matrix that holds several, which need not begin at a whole panel; the last ones come back."""
    for type, columns in ((GGMLType.F32, 33), (GGMLType.Q8_0, 64), (GGMLType.Q4_K, 256)):
        for widths in ((5, 20, 15), (24, 16)):
            make = _both(_tables(x=columns), _matrix("w", type, 40, columns, bias=True))
            yield Case(f"linears-rows-{type.name}-{len(widths)}", "linears", make, _rows_of(widths), "linears")


def _rows_of(widths: tuple[int, ...]) -> Callable[[CaseTracer], Handle]:
    def build(p: CaseTracer) -> Handle:
        x = p.embed("x")
        at, out = 0, []
        for width in widths:
            out.append(Tracer.linear(p, x, "w", width=width, first=at))
            at += width
        return out[-1]

    return build


def _heads() -> Iterator[Case]:
    """A matrix for each head, of sizes that do and do not fill panels, in few rows and in many."""
    for type, heads, rows, columns in (
        (GGMLType.F32, 3, 20, 33),
        (GGMLType.F16, 2, 16, 40),
        (GGMLType.Q8_0, 4, 37, 64),
        (GGMLType.Q4_K, 2, 18, 256),
    ):
        make = _both(_tables(x=heads * columns), _matrices("w", type, heads, rows, columns))
        build = lambda p, n=heads, w=rows: p.per_head_linear(p.embed("x"), "w", heads=n, width=w)  # noqa: E731
        runs = (*ROWS, ((90, 0, (0, 1, 2)),))
        yield Case(f"per_head_linear-{type.name}", "per_head_linear", make, build, "heads", runs)


def _matrices(name: str, type: GGMLType, n: int, rows: int, columns: int) -> Make:
    def make(rng: np.random.Generator) -> dict[str, Raw]:
        flat = random_weight(rng, type, n * rows, columns)
        return {f"{name}.weight": Raw(type, (n, rows, columns), flat.data)}

    return make


# Whole texts: one row, some, more than a split of attention, and several at once.
_TEXTS: tuple[Run, ...] = (
    ((1, 0, (3,)),),
    ((9, 0, (0,)),),
    ((150, 0, (7, 6, 5, 4, 3)),),
    ((40, 0, (1, 0)), (3, 0, (2,)), (131, 0, (9, 8, 7, 6, 5)), (1, 0, (3,))),
)


def _texts() -> Iterator[Case]:
    for kind in get_args(Pool):
        check = "near" if kind == "mean" else "exact"
        yield Case(f"pool-{kind}", "pool", _tables(x=33), lambda p, k=kind: p.pool(p.embed("x"), k), check, _TEXTS)
    for type in (GGMLType.F32, GGMLType.F16, GGMLType.Q8_0):
        make = _both(_tables(x=64), _matrix("at", type, 150, 64))
        at = lambda p: p.embed_position(p.embed("x"), "at")  # noqa: E731
        yield Case(f"embed_position-{type.name}", "embed_position", make, at, "exact", _TEXTS)
    for rows, separator in ((1, 0), (2, 0), (2, 7), (1, 7)):
        make = _both(_tables(x=33), _matrix("kinds", GGMLType.F32, rows, 33))
        typed = lambda p, s=separator: p.embed_token_type(p.embed("x"), "kinds", s)  # noqa: E731
        yield Case(f"embed_token_type-{rows}-{separator}", "embed_token_type", make, typed, "exact", _TEXTS)
    for head_dim, group, window, kv_type in (
        (32, 1, 0, "f32"),
        (64, 3, 0, "f16"),
        (16, 1, 8, "f32"),
        (32, 2, 100, "q8_0"),
        (24, 1, 300, "f32"),
    ):
        name = f"attend-all-{head_dim}-{group}-{window}-{kv_type}"
        make = _tables(q=2 * group * head_dim, k=2 * head_dim, v=2 * head_dim)
        yield Case(name, "attend", make, _attends_all(head_dim, window), "attend", _TEXTS, kv_type)
    for group, buckets in ((3, 0), (1, 32), (2, 10)):
        tables = _tables(q=2 * group * 16, k=32, v=32)
        if buckets:
            make = _both(tables, _matrix("far", GGMLType.F32, buckets, 2 * group))
            build = _attends_all(16, 0, distances="far")
        else:
            make, build = tables, _attends_all(16, 100, alibi=8.0)
        yield Case(f"attend-far-{group}-{buckets}", "attend", make, build, "attend", _TEXTS)
    make = _tables(q=96, k=32, v=32)
    yield Case("attend-far-other-heads", "attend", make, _attends_twice, "attend", _TEXTS)


def _attends_twice(p: CaseTracer) -> Handle:
    """Six heads, then three: their slopes differ."""
    q, k, v = p.embed("q"), p.embed("k"), p.embed("v")
    for head_dim in (16, 32):
        q = p.attention(q, k, v, head_dim=head_dim, scale=head_dim**-0.5, mask="all", alibi=8.0)
    return q


def _attends_all(head_dim: int, window: int, **more: Any) -> Callable[[CaseTracer], Handle]:
    def build(p: CaseTracer) -> Handle:
        q, k, v = p.embed("q"), p.embed("k"), p.embed("v")
        return p.attention(q, k, v, head_dim=head_dim, scale=head_dim**-0.5, window=window, mask="all", **more)

    return build


_MAKERS = (_activations, _products, _streams, _norms, _ropes, _views, _heads, _texts)
ELEMENTS = {case.name: case for maker in _MAKERS for case in maker()}
