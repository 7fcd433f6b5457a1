"""Cases of an index: positions and blocks that rows choose, and attention to them. CUDA has no kernels for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.cases.attention import _SPLITS, _TOGETHER
from tests.cases.ops import Case, CaseTracer, Make, _tables
from tests.cases.weights import Raw
from woolly.plan import Handle, Rope

HEAD = 16  # of the index, whose keys turn: equal tokens at two positions are no equals


def _choice(p: CaseTracer, *, n: int, block: int, has_weights: bool) -> Handle:
    rope = Rope(HEAD, HEAD, 10000.0, "neox")
    q, k = (p.rope(p.embed(name), rope) for name in ("index_q", "index_k"))
    weights = p.embed("index_weights") if has_weights else None
    return p.indexer(q, k, weights, head_dim=HEAD, n=n, block=block, local=int(block > 1))


def _spoiled(widths: dict[str, int]) -> Make:
    """Tables of which some keys, and the weights of one token, are no numbers."""

    def make(rng: np.random.Generator) -> dict[str, Raw]:
        tables = _tables(**widths)(rng)
        for name, tokens in (("index_k", slice(0, None, 3)), ("index_weights", slice(7, 8))):
            if raw := tables.get(f"{name}.weight"):
                rows = raw.values().copy()
                rows[tokens] = np.nan
                tables[f"{name}.weight"] = Raw(raw.type, raw.shape, rows.view(np.uint8))
        return tables

    return make


def _cases() -> Iterator[Case]:
    tables = {"index_q": 4 * HEAD, "index_k": HEAD, "index_weights": 4}
    for n, runs, name in ((5, _SPLITS, "splits"), (40, _TOGETHER, "together")):
        yield Case(
            f"index_topk-{name}",
            "index_topk",
            _tables(**tables),
            lambda p, n=n: _choice(p, n=n, block=1, has_weights=True),
            "exact",
            runs,
        )
    for kv_type, n, block, runs in (("f16", 3, 8, _SPLITS), ("q8_0", 2, 24, _TOGETHER)):
        yield Case(
            f"index_topk-blocks{block}",
            "index_topk",
            _tables(index_q=2 * HEAD, index_k=HEAD),
            lambda p, n=n, block=block: _choice(p, n=n, block=block, has_weights=False),
            "exact",
            runs,
            kv_type,
        )
    for n, block, has_weights in ((5, 1, True), (4, 1, False), (3, 8, False)):
        yield Case(
            f"index_topk-no-numbers-{n}x{block}-{has_weights}",
            "index_topk",
            _spoiled(tables if has_weights else {"index_q": 2 * HEAD, "index_k": HEAD}),
            lambda p, n=n, block=block, has=has_weights: _choice(p, n=n, block=block, has_weights=has),
            "exact",
            _SPLITS,
        )
    for kv_type, n, block, runs, inside in (
        ("f32", 7, 1, _SPLITS, True),
        ("f16", 150, 1, _SPLITS, False),
        ("q8_0", 40, 1, _TOGETHER, True),
        ("q4", 9, 1, _TOGETHER, False),
        ("f16", 3, 16, _TOGETHER, False),
    ):
        kv_heads, head_dim, own = (1, 48, {}) if inside else (2, 32, {"v": 64})

        def build(p: CaseTracer, n=n, block=block, inside=inside, head_dim=head_dim) -> Handle:
            chosen = _choice(p, n=n, block=block, has_weights=block == 1)
            q, k, v = p.embed("q"), p.embed("k"), None if inside else p.embed("v")
            v_dim = 40 if inside else 0
            return p.attention(q, k, v, head_dim=head_dim, scale=head_dim**-0.5, v_dim=v_dim, chosen=chosen)

        index = tables if block == 1 else {"index_q": 2 * HEAD, "index_k": HEAD}
        made = _tables(**index, q=3 * kv_heads * head_dim, k=kv_heads * head_dim, **own)
        yield Case(f"attend-chosen-{kv_type}-{n}x{block}", "attend", made, build, "attend", runs, kv_type)


CHOICES = {case.name: case for case in _cases()}
