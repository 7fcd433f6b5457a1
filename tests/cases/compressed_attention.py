"""Cases of compressed keys, hyper connections and what else DeepSeek V4 has. CUDA has no kernels for them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.attention import _PAGES, _SPLITS, _TOGETHER
from tests.cases.moe import Experts
from tests.cases.ops import N_TOKENS, ROWS, Case, CaseTracer, Run, _both, _matrix, _tables, _vector
from woolly.plan import Handle, Rope
from woolly.quant import GGMLType

_LONG: tuple[Run, ...] = (*ROWS, ((90, 0, (0, 1, 2)),))


def _hypers() -> Iterator[Case]:
    for n, iterations in ((4, 20), (3, 1), (1, 2)):
        make = _both(_tables(x=n * (n + 2)), _vector("scale", 3), _vector("base", n * (n + 2), 0.0))
        build = lambda p, n=n, k=iterations: p.hyper_connections(  # noqa: E731
            p.embed("x"), "scale", "base", streams=n, iterations=k, eps=1e-6
        )
        yield Case(f"hyper_connections-{n}x{iterations}", "hyper_connections", make, build, "near")
    make = _both(_tables(x=4), _vector("scale", 1), _vector("base", 4, 0.0))
    build = lambda p: p.hyper_connections(p.embed("x"), "scale", "base", streams=4, iterations=0, eps=1e-6)  # noqa: E731
    yield Case("hyper_connections-head", "hyper_connections", make, build, "near")


def _compressions() -> Iterator[Case]:
    for every, width, overlaps, runs in (
        (4, 33, True, _PAGES),
        (4, 16, True, _TOGETHER),
        (16, 20, False, _TOGETHER),
        (128, 8, False, _SPLITS),
    ):
        wide = width * (1 + overlaps)
        make = _both(_tables(kv=wide, gate=wide), _matrix("bias", GGMLType.F32, every, wide))
        build = lambda p, n=every, w=width: p.compress(  # noqa: E731
            p.embed("kv"), p.embed("gate"), "bias", every=n, width=w
        )
        yield Case(f"compress-{every}x{wide}-{len(runs)}", "compress", make, build, "near", runs)


def _kept() -> Iterator[Case]:
    for runs in (_PAGES, _TOGETHER):
        yield Case(
            f"cache_rows-{len(runs[0])}",
            "cache_rows",
            _tables(x=48),
            lambda p: p.cache_rows(p.embed("x")),
            "exact",
            runs,
        )
    for kv_type, heads, head_dim, window, every, n, runs in (
        ("f32", 3, 48, 100, 4, 0, _SPLITS),
        ("f16", 20, 32, 8, 16, 0, _TOGETHER),
        ("f32", 17, 40, 40, 4, 6, _SPLITS),
        ("q8_0", 4, 64, 100, 4, 30, _SPLITS),
        ("q4", 4, 64, 12, 4, 5, _TOGETHER),
    ):

        def build(p: CaseTracer, d=head_dim, w=window, m=every, n=n) -> Handle:
            chosen = None
            if n:
                q, k, weights = (p.embed(f"index_{x}") for x in ("q", "k", "weights"))
                chosen = p.indexer(q, k, weights, head_dim=16, n=n, every=m)
            q, k, c = p.embed("q"), p.cache_rows(p.embed("k"), window=w), p.cache_rows(p.embed("c"))
            return p.attend_compressed(q, k, c, chosen, head_dim=d, scale=d**-0.5, window=w, every=m, sinks="sinks")

        index = {"index_q": 64, "index_k": 16, "index_weights": 4} if n else {}
        tables = _tables(**index, q=heads * head_dim, k=head_dim, c=head_dim)
        made = _both(tables, _vector("sinks", heads, 0.0))
        yield Case(f"attend_compressed-{kv_type}-{heads}-{n}", "attend_compressed", made, build, "scan", runs, kv_type)


def _others() -> Iterator[Case]:
    rope = Rope(16, 16, 10000.0, "neox")
    tables = _tables(index_q=64, index_k=16, index_weights=4)
    for every, n, runs in ((4, 5, _SPLITS), (4, 30, _TOGETHER), (16, 3, _SPLITS)):

        def choice(p: CaseTracer, n=n, m=every) -> Handle:
            q, k = (p.rope(p.embed(f"index_{x}"), rope) for x in "qk")
            return p.indexer(q, k, p.embed("index_weights"), head_dim=16, n=n, every=m)

        yield Case(f"index_topk-every{every}-{n}", "index_topk", tables, choice, "exact", runs)
    for back, inverse in ((3, False), (0, True), (127, True)):
        turn = Rope(16, 16, 10000.0, "adjacent", back=back, inverse=inverse)
        build = lambda p, r=turn: p.rope(p.embed("x"), r)  # noqa: E731
        yield Case(f"rope-back{back}-{inverse}", "rope", _tables(x=48), build, "near", _SPLITS)
    for limit in (0.1, 7.0):
        build = lambda p, m=limit: p.glu(p.embed("a"), p.embed("b"), "clipped", limit=m)  # noqa: E731
        yield Case(f"glu-clipped-{limit}", "glu", _tables(a=33, b=33), build, "near")
    for type, heads, rows, columns in ((GGMLType.F32, 3, 32, 33), (GGMLType.Q8_0, 2, 16, 64)):
        make = _both(_tables(x=heads * columns), _matrix("w", type, heads * rows, columns))
        build = lambda p, n=heads, w=rows: p.per_head_linear(p.embed("x"), "w", heads=n, width=w)  # noqa: E731
        yield Case(f"per_head_linear-whole-{type.name}", "per_head_linear", make, build, "heads", _LONG)
    for name, experts in {
        "root": Experts(9, 3, scoring="sqrt_softplus", weights_scale=1.5),
        "root-normalized": Experts(9, 3, scoring="sqrt_softplus", normalize=True),
        "table": Experts(6, 3, scoring="sqrt_softplus", normalize=True, table=True),
        "table-Q8_0": Experts(8, 2, (GGMLType.Q8_0,) * 3, 96, 64, norm=True, residual=True, table=True),
    }.items():
        made = lambda rng, e=experts: e.make(rng, N_TOKENS)  # noqa: E731
        yield Case(f"moe-{name}", "moe", made, experts.build, "moe", _LONG)


COMPRESSIONS = {case.name: case for cases in (_hypers, _compressions, _kept, _others) for case in cases()}
