"""Cases of the ops over slots, and the whole case table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.cases.attention import _PAGES, _SHORT, _TOGETHER, ATTENTIONS
from tests.cases.elements import ELEMENTS
from tests.cases.ops import CASES, Case, CaseTracer, Make, _both, _matrix, _tables
from tests.cases.weights import Raw, random_vector, random_weight
from woolly.plan import Handle
from woolly.quant import GGMLType

RUNS = (_SHORT, _PAGES, _TOGETHER)


def _rates(name: str, *shape: int) -> Make:
    """Numbers below 0, by which a state fades."""

    def make(rng: np.random.Generator) -> dict[str, Raw]:
        values = -rng.uniform(0.1, 2.0, shape).astype(np.float32)
        return {name: Raw(GGMLType.F32, shape, values.view(np.uint8).reshape(-1))}

    return make


def _numbers(name: str, n: int) -> Make:
    return lambda rng: {name: random_vector(rng, n)}


def _positive(p: CaseTracer, name: str) -> Handle:
    return p.unary(p.embed(name), "softplus")


def _convs() -> Iterator[Case]:
    for i, (n, kernel) in enumerate(((5, 2), (16, 3), (33, 4), (100, 4))):
        for act, bias in (("silu", True), ("", False)):
            make = _both(_tables(x=n), _matrix("w", GGMLType.F32, n, kernel, bias))
            build = lambda p, k=kernel, a=act: p.causal_conv1d(p.embed("x"), "w", kernel=k, act=a)  # noqa: E731
            yield Case(f"causal_conv1d-{n}x{kernel}-{act or 'none'}", "causal_conv1d", make, build, "near", RUNS[i % 3])
    wide = lambda rng: {"w.weight": replace(random_weight(rng, GGMLType.F32, 33, 4), shape=(1, 33, 1, 4))}  # noqa: E731
    build = lambda p: p.causal_conv1d(p.embed("x"), "w", kernel=4)  # noqa: E731
    yield Case("causal_conv1d-axes-of-1", "causal_conv1d", _both(_tables(x=33), wide), build, "near", _TOGETHER)
    for runs in RUNS:
        yield Case(
            f"token_shift-{len(runs[0])}-{len(runs)}",
            "token_shift",
            _tables(x=7),
            lambda p: p.token_shift(p.embed("x")),
            "exact",
            runs,
        )


def delta_nets(*shapes: tuple[int, int, int, int]) -> Iterator[Case]:
    for i, (n_k, n_v, head, head_v) in enumerate(shapes):
        for order in ("mod", "div"):
            for wide in (n_v, n_v * head):
                tables = _tables(q=n_k * head, k=n_k * head, v=n_v * head_v, g=wide, b=n_v)

                def build(p: CaseTracer, n_k=n_k, n_v=n_v, order=order) -> Handle:
                    q, k, v, b = (p.embed(x) for x in "qkvb")
                    g, b = _positive(p, "g") * -1.0, p.unary(b, "sigmoid")
                    return p.delta_net(q, k, v, g, b, heads_k=n_k, heads_v=n_v, order=order, eps=1e-6)

                name = f"delta_net-{n_k}-{n_v}-{head}x{head_v}-{order}-{'head' if wide == n_v else 'key'}"
                yield Case(name, "delta_net", tables, build, "scan", RUNS[i % 3])


def mambas(*shapes: tuple[int, int]) -> Iterator[Case]:
    for i, (n, state) in enumerate(shapes):
        make = _both(_tables(x=n, dt=n, b=state, c=state), _rates("a", n, state), _numbers("d", n))
        build = lambda p: p.scan_mamba(  # noqa: E731
            p.embed("x"), _positive(p, "dt"), p.embed("b"), p.embed("c"), a="a", d="d"
        )
        yield Case(f"scan_mamba-{n}x{state}", "scan_mamba", make, build, "scan", RUNS[i % 3])


def mambas2(*shapes: tuple[int, int, int, int]) -> Iterator[Case]:
    for i, (heads, groups, state, head) in enumerate(shapes):
        wide = groups * state
        make = _both(_tables(x=heads * head, dt=heads, b=wide, c=wide), _rates("a", heads, 1), _numbers("d", heads))
        build = lambda p, g=groups: p.scan_mamba2(  # noqa: E731
            p.embed("x"), _positive(p, "dt"), p.embed("b"), p.embed("c"), a="a", d="d", groups=g
        )
        yield Case(f"scan_mamba2-{heads}-{state}x{head}", "scan_mamba2", make, build, "scan", RUNS[i % 3])


def wkvs_and_lightnings(*shapes: tuple[int, int]) -> Iterator[Case]:
    for i, (n, head) in enumerate(shapes):
        six = _tables(r=n, w=n, k=n, v=n, a=n, b=n)

        def wkv(p: CaseTracer, head=head) -> Handle:
            # Keys as long as 1, so that nothing grows.
            r, k, v, a, b = (p.rms_norm(p.embed(x), eps=1e-6, group=head) * head**-0.5 for x in "rkvab")
            return p.wkv7(r, _positive(p, "w") * -1.0, k, v, a, b * -0.5, head=head)

        yield Case(f"wkv7-{n}x{head}", "wkv7", six, wkv, "scan", RUNS[i % 3])
        light = lambda p, h=head: p.lightning_attention(p.embed("q"), p.embed("k"), p.embed("v"), head=h, slope=0.7)  # noqa: E731
        yield Case(
            f"lightning_attention-{n}x{head}", "lightning_attention", _tables(q=n, k=n, v=n), light, "scan", RUNS[i % 3]
        )


_ALL = (
    _convs(),
    delta_nets((1, 1, 3, 5), (2, 4, 16, 16), (1, 3, 17, 33), (2, 2, 9, 80), (1, 2, 128, 128)),
    mambas((5, 3), (64, 16), (100, 16)),
    mambas2((2, 1, 3, 5), (4, 2, 16, 16), (3, 3, 17, 33), (2, 1, 128, 64)),
    wkvs_and_lightnings((6, 3), (32, 16), (34, 17), (128, 64)),
)
SCANS = {case.name: case for cases in _ALL for case in cases}
ALL = CASES | ATTENTIONS | ELEMENTS | SCANS
