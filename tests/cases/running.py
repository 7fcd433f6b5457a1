"""Cases of runs of tokens, convolutions that leave out rows, and whole blocks that an index chooses: not on CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cases.attention import _SPLITS, _TOGETHER
from tests.cases.ops import N_TOKENS, Case, CaseTracer, _both, _matrix, _tables
from tests.cases.scans import RUNS
from woolly.plan import Handle, Rope
from woolly.quant import GGMLType

_ROPE = Rope(16, 16, 10000.0, "neox")


def _choice(p: CaseTracer, n: int, every: int) -> Handle:
    q, k = (p.rope(p.embed(f"index_{x}"), _ROPE) for x in "qk")
    return p.indexer(q, k, p.embed("index_weights"), head_dim=16, n=n, every=every, whole=True)


def _cases() -> Iterator[Case]:
    for type, runs, end in ((GGMLType.F32, RUNS[0], 3), (GGMLType.Q8_0, RUNS[1], 5), (GGMLType.F16, RUNS[2], 1)):
        factors, sizes = (2**45 + 7, 2**44 + 3, 2**62 + 1), (31, 37, 41, 43)

        def look_up(p: CaseTracer, f=factors, s=sizes, e=end) -> Handle:
            return p.ngrams("w", end=e % N_TOKENS, factors=f, sizes=s, firsts=(0, 31, 68, 109))

        yield Case(f"ngrams-{type.name}", "ngrams", _matrix("w", type, 160, 32), look_up, "exact", runs)
    for (n, kernel, gap), runs in zip(((5, 2, 1), (33, 4, 2), (16, 3, 40)), RUNS, strict=True):
        make = _both(_tables(x=n), _matrix("w", GGMLType.F32, n, kernel))
        build = lambda p, k=kernel, g=gap: p.causal_conv1d(p.embed("x"), "w", kernel=k, gap=g)  # noqa: E731
        yield Case(f"causal_conv1d-{n}x{kernel}-gap{gap}", "causal_conv1d", make, build, "near", runs)
    for n in (1, 17, 100):
        yield Case(f"unary-root-{n}", "unary", _tables(x=n), lambda p: p.unary(p.embed("x"), "root"), "near")
    index = {"index_q": 64, "index_k": 16, "index_weights": 4}
    for every, n, runs in ((4, 5, _SPLITS), (4, 30, _TOGETHER), (3, 2, _SPLITS)):
        build = lambda p, n=n, m=every: _choice(p, n, m)  # noqa: E731
        yield Case(f"index_topk-whole{every}-{n}", "index_topk", _tables(**index), build, "exact", runs)
    for kv_type, every, n, runs in (("f16", 4, 5, _SPLITS), ("q8_0", 3, 2, _TOGETHER)):

        def attend(p: CaseTracer, n=n, m=every) -> Handle:
            chosen = _choice(p, n, m)
            q, k, v = (p.embed(x) for x in "qkv")
            return p.attention(q, k, v, head_dim=32, scale=32**-0.5, chosen=chosen)

        made = _tables(**index, q=4 * 32, k=2 * 32, v=2 * 32)
        yield Case(f"attend-whole-{kv_type}-{n}x{every}", "attend", made, attend, "attend", runs, kv_type)


RUNNING = {case.name: case for case in _cases()}
