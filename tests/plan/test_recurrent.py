"""Recurrent layers of a model file are validated with the line that declares them."""

from types import SimpleNamespace

import pytest

from woolly.errors import PlanError
from woolly.plan import Tracer
from woolly.quant import GGMLType

HEADS = {"heads_v": 2, "order": "mod", "eps": 0.0}
SHAPES = {"token_embd": (5, 8), "filter": (8, 3), "turned": (3, 8), "rates": (8, 2), "skips": (8,), "two": (2, 1)}


@pytest.fixture
def p():
    return Tracer("test", {f"{k}.weight": SimpleNamespace(type=GGMLType.F32, shape=v) for k, v in SHAPES.items()})


def eight(p):
    return p.embed("token_embd", width=8)


def columns(p, n):
    return p.slice(eight(p), first=0, width=n)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda p: p.causal_conv1d(eight(p), "filter", kernel=4), r"expected \(8, 4\)"),
        (
            lambda p: p.causal_conv1d(eight(p), "turned", kernel=3),
            r"turned\.weight has shape \(3, 8\), expected \(8, 3\)",
        ),
        (lambda p: p.causal_conv1d(p.output_rows(eight(p)), "filter", kernel=3), "needs all rows"),
        (lambda p: p.causal_conv1d(eight(p), "filter", kernel=3, act="relu"), "expected silu or none"),
        (lambda p: p.split(eight(p), 3, 4), r"3 \+ 4 columns of 1 runs from 8"),
        (lambda p: eight(p) + p.vector("rates"), "16 elements, which do not divide the width 8"),
        (lambda p: p.wkv7(*[eight(p)] * 6, head=3), "heads of 3"),
        (
            lambda p: p.lightning_attention(eight(p), eight(p), columns(p, 4), head=4, slope=1.0),
            "lightning_attention got",
        ),
        (
            lambda p: p.delta_net(
                *[eight(p)] * 3, columns(p, 4), columns(p, 2), heads_k=2, heads_v=2, order="mod", eps=0
            ),
            "a decay of 4 and a beta of 2 for 2 heads",
        ),
        (
            lambda p: p.delta_net(*[eight(p)] * 3, *[columns(p, 2)] * 2, heads_k=4, **HEADS),
            "4 heads of k for 2 of v",
        ),
        (
            lambda p: p.scan_mamba(eight(p), columns(p, 2), *[columns(p, 2)] * 2, a="rates", d="skips"),
            "dt of 2",
        ),
        (
            lambda p: p.scan_mamba2(eight(p), columns(p, 4), *[columns(p, 2)] * 2, a="two", d="two", groups=1),
            "expected 4 numbers",
        ),
        (
            lambda p: p.scan_mamba2(eight(p), columns(p, 3), *[columns(p, 2)] * 2, a="two", d="two", groups=1),
            "8, which 3 heads do not divide",
        ),
    ],
)
def test_mismatched_shapes_are_rejected(p, build, sentence):
    with pytest.raises(PlanError, match=sentence):
        build(p)
