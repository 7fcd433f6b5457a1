"""The op table: every sentence that a model file can say. Backends are tested against this list.

Entry price of an op: a NumPy reference of at most 30 lines, a shape rule in the tracer, rows in the case table.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OPS", "Op"]


@dataclass(frozen=True)
class Op:
    """One row of the table."""

    name: str
    inputs: tuple[str, ...]  # a name that ends in "?" is given by passes alone
    weights: tuple[str, ...]  # a name that ends in "?" may be absent
    attributes: tuple[str, ...]
    meaning: str
    fused: bool = False  # made by a pass, never said by a model


_TABLE = (
    Op("embed", (), ("table",), (), "row of the table for each token of the batch"),
    Op(
        "rms_norm",
        ("x",),
        ("weight",),
        ("eps",),
        "each group of len(weight) divided by its rms, times weight",
    ),
    Op("linear", ("x",), ("weight", "bias?"), (), "x times weight transposed, plus bias"),
    Op("rope", ("x",), ("divisors?",), ("rope",), "each head turned by its token's position"),
    Op(
        "attention",
        ("q", "k", "v"),
        (),
        ("layer", "head_dim", "scale", "window", "softcap"),
        "k and v stored in the cache, then causal softmax attention of q over it",
    ),
    Op("swiglu", ("gate", "up"), (), (), "silu(gate) times up"),
    Op(
        "moe",
        ("x", "residual?"),
        ("norm?", "router", "bias?", "gate", "up", "down"),
        ("roles", "n_used", "scoring", "normalize", "weights_scale", "eps", "scale", "epilogue"),
        "x to the n_used experts that its router scores highest, their down(swiglu(gate, up)) summed by weight;"
        " passes give it a norm, a scale and a residual as they do linears",
    ),
    Op("add", ("a", "b"), (), (), "a plus b"),
    Op("scale", ("x",), (), ("factor",), "x times a constant"),
    Op("output_rows", ("x",), (), (), "only the rows whose logits are wanted"),
    Op(
        "linears",
        ("x", "residual?"),
        ("norm?", "weight...", "bias?..."),
        ("roles", "eps", "scale", "epilogue"),
        "x normed, times each weight, plus its bias, times scale; then swiglu of two, or added to the residual",
        fused=True,
    ),
    Op(
        "store",
        ("q", "k", "v"),
        ("q_norm?", "k_norm?", "divisors?"),
        ("roles", "rope", "eps", "layer", "head_dim"),
        "q and k normed per head and turned; k and v stored in the cache; gives q",
        fused=True,
    ),
    Op(
        "attend",
        ("q",),
        (),
        ("layer", "head_dim", "scale", "window", "softcap"),
        "causal softmax attention of q over the cache",
        fused=True,
    ),
)

OPS = {op.name: op for op in _TABLE}
