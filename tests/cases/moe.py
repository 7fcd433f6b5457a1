"""Cases of expert routing: files with a router and experts, and how far from the reference a backend may lie."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tests.cases.arithmetic import SLACK, activation_block, linear_bound
from tests.cases.weights import FLOATS, Raw, random_vector, random_weight
from woolly.plan import Handle, Step, Tracer
from woolly.quant import GGMLType
from woolly.runtime.reference.moe import expert_weights
from woolly.runtime.reference.ops import apply_rms_norm

EPS = 1e-5
_F32 = GGMLType.F32
_SIZE = 0.15  # of what meets the weights, so that logits and hidden values are about 1


@dataclass(frozen=True)
class Experts:
    """One mixture. With `logits` the router is zeros and a bias: every row has exactly these."""

    n_experts: int
    n_used: int
    types: tuple[GGMLType, ...] = (_F32, _F32, _F32)  # of gate, up and down
    width: int = 48
    ffn: int = 40
    router: GGMLType = _F32
    scoring: str = "softmax"
    normalize: bool = False
    weights_scale: float = 1.0
    norm: bool = False
    scale: float = 1.0
    residual: bool = False
    logits: tuple[float, ...] | None = None
    weigh: str = "output"
    cap: float = 0.0
    shared: int = 1
    table: bool = False  # experts of each token, whatever the router says

    def make(self, rng: np.random.Generator, n_rows: int) -> dict[str, Raw]:
        """The file's tensors; x and r are tables of the given number of rows."""
        out = {}
        if self.norm:
            out["norm.weight"] = _floats(_SIZE * random_vector(rng, self.width, 1.0).values())
        router = random_weight(rng, self.router, self.n_experts, self.width)
        if self.logits is not None:
            router = replace(router, data=np.zeros_like(router.data))
            out["router.bias"] = _floats(np.array(self.logits))
        out["router.weight"] = router
        shapes = {"gate": (self.ffn, self.width), "up": (self.ffn, self.width), "down": (self.width, self.ffn)}
        for (name, (rows, columns)), type in zip(shapes.items(), self.types, strict=True):
            raw = random_weight(rng, type, self.n_experts // self.shared * rows, columns)
            out[f"{name}.weight"] = replace(raw, shape=(self.n_experts // self.shared, rows, columns))
        if self.table:
            table = np.stack([rng.permutation(self.n_experts)[: self.n_used] for _ in range(n_rows)]).astype(np.int32)
            table[0] = table[0, 0]  # a token may name one expert twice
            out["table.weight"] = Raw(GGMLType.I32, table.shape, table.view(np.uint8))
        out["x.weight"] = _floats(self._rows(rng, n_rows, out))
        if self.residual:
            out["r.weight"] = _floats(rng.standard_normal((n_rows, self.width)))
        return out

    def build(self, p: Tracer) -> Handle:
        """The step, after the embeddings of its inputs."""
        x = p.embed("x", width=self.width)
        r = p.embed("r", width=self.width) if self.residual else None
        if self.norm:
            x = p.rms_norm(x, "norm", eps=EPS)
        y = p.moe(
            x,
            "router",
            "gate",
            "up",
            "down",
            n_experts=self.n_experts,
            ffn=self.ffn,
            n_used=self.n_used,
            scoring=self.scoring,  # type: ignore[arg-type]
            normalize=self.normalize,
            weights_scale=self.weights_scale,
            weigh=self.weigh,  # type: ignore[arg-type]
            cap=self.cap,
            shared=self.shared,
            table="table" if self.table else None,
        )
        y = y * self.scale if self.scale != 1.0 else y
        return y if r is None else r + y

    def _rows(self, rng: np.random.Generator, n: int, tensors: dict[str, Raw]) -> np.ndarray:
        """Rows whose experts no rounding of the router can change."""
        rows = (_SIZE * rng.standard_normal((64 * n, self.width))).astype(np.float32)
        if self.logits is not None or self.n_used == self.n_experts:
            return rows[:n]
        x = apply_rms_norm(rows, tensors["norm.weight"].values(), EPS) if self.norm else rows
        router = tensors["router.weight"]
        logits = np.sort(x @ router.values().T, axis=1)[:, ::-1]
        gap = logits[:, self.n_used - 1] - logits[:, self.n_used]
        (clear,) = np.nonzero(gap > 2 * linear_bound(x, router).max(axis=1))
        assert len(clear) >= n
        return rows[clear[:n]]


def moe_bound(
    step: Step, tensors: dict[str, Raw], x: np.ndarray, residual: np.ndarray | None, given: np.ndarray | None = None
) -> np.ndarray:
    """Error bound of a mixture, from the worst-case errors of its linears.

    Through three linears of quantized activations that is several times the result, where it is a hundredth in fact;
    a wrong expert or weight is off by as much as its part of the result. So it is cut off in between.
    """
    raws = {role: tensors[w.name] for role, w in zip(step.text("roles").split(), step.weights, strict=True)}
    if "norm" in raws:
        x = apply_rms_norm(x, raws["norm"].values(), step.number("eps"))
    exact = x.astype(np.float64)
    logits = exact @ raws["router"].values().T.astype(np.float64)
    off = linear_bound(x, raws["router"]).max(axis=1, keepdims=True)
    if "bias" in raws:
        logits += raws["bias"].values()
        off += SLACK * np.abs(raws["bias"].values()).max()
    weights = np.abs(expert_weights(step, logits.astype(np.float32), None, given).astype(np.float64))
    d_weights = weights * (np.expm1(2 * off) + 2 * SLACK)
    total, size = np.zeros(x.shape), np.zeros((len(x), 1))
    for e in np.flatnonzero(weights.any(axis=0)):
        gate, up, down = (_expert(raws[role], int(e)) for role in ("gate", "up", "down"))
        w, d_w = weights[:, e, None], d_weights[:, e, None]
        g, u = (exact @ m.values().T.astype(np.float64) for m in (gate, up))
        d_gate, d_up = linear_bound(x, gate), linear_bound(x, up)
        if step.text("weigh") == "input":
            d_gate, d_up = w * d_gate + d_w * np.abs(g), w * d_up + d_w * np.abs(u)
            g, u, w, d_w = w * g, w * u, np.sign(w), 0 * d_w
        # silu lies between -0.28 and its argument; its slope is at most 1.1.
        hidden = g / (1 + np.exp(-g)) * u
        d_hidden = 1.1 * d_gate * (np.abs(u) + d_up) + np.maximum(g, 0.28) * d_up + SLACK * np.abs(hidden)
        part = np.abs(hidden @ down.values().T.astype(np.float64))
        d_part = _inexact_linear_bound(hidden, d_hidden, down)
        total += w * d_part + d_w * (part + d_part) + SLACK * w * part
        size += w * np.sqrt(np.mean(part**2, axis=1, keepdims=True))
    bound: np.ndarray = abs(step.number("scale")) * np.minimum(total, 0.25 * size)
    return bound if residual is None else bound + SLACK * np.abs(residual)


def _inexact_linear_bound(x: np.ndarray, d_x: np.ndarray, weight: Raw) -> np.ndarray:
    """Return the bound of linear_bound for an x that is off by at most d_x."""
    w = np.abs(weight.values().astype(np.float64))
    bound = SLACK * ((np.abs(x) + d_x) @ w.T) + d_x @ w.T
    if weight.type in FLOATS:
        return bound
    block = activation_block(weight.type)
    largest = (np.abs(x) + d_x).reshape(len(x), -1, block).max(axis=-1)
    return bound + 0.5001 / 127 * largest @ w.reshape(len(w), -1, block).sum(axis=-1).T


def _expert(raw: Raw, e: int) -> Raw:
    data = raw.data.reshape(raw.shape[0], raw.shape[1], -1)[e]
    return Raw(raw.type, raw.shape[1:], data)


def _floats(values: np.ndarray) -> Raw:
    return Raw(_F32, values.shape, np.ascontiguousarray(values, np.float32).view(np.uint8))


_T = GGMLType
_ALL = (_T.Q8_0,) * 3, (_T.Q4_K,) * 3, (_T.Q6_K,) * 3, (_T.F16,) * 3, (_T.Q4_0, _T.Q5_1, _T.Q8_0)
_MIXED = (_T.Q4_K, _T.Q8_0, _T.Q6_K), (_T.F32, _T.Q4_K, _T.F16), (_T.Q8_0, _T.F32, _T.Q5_K)

MOES: dict[str, Experts] = {
    "one-of-8": Experts(8, 1),
    "one-of-8-normalized": Experts(8, 1, normalize=True),
    "two-of-8": Experts(8, 2),
    "all-of-5": Experts(5, 5, normalize=True),
    "only-one": Experts(1, 1),
    "three-of-33": Experts(33, 3, normalize=True, weights_scale=2.5),
    "odd-sizes": Experts(7, 2, width=37, ffn=19, normalize=True),
    "tiny": Experts(3, 2, width=1, ffn=1, logits=(0.5, 0.25, 1.0)),
    "sigmoid": Experts(9, 3, scoring="sigmoid", weights_scale=1.5),
    "sigmoid-normalized": Experts(9, 3, scoring="sigmoid", normalize=True, weights_scale=2.5),
    "sigmoid-next-to-zero": Experts(4, 2, scoring="sigmoid", normalize=True, logits=(-200.0, -90.0, -300.0, -200.0)),
    "sparsemixer": Experts(33, 2, scoring="sparsemixer", weights_scale=1.5),
    # The last one is far from the first in rank and near the second; of three zeros none is far.
    "sparsemixer-near": Experts(6, 2, scoring="sparsemixer", logits=(1.0, 1.99, 1.98, 2.0, -2.0, 1.955)),
    "sparsemixer-below-0": Experts(4, 3, scoring="sparsemixer", logits=(-9.0, -3.05, -3.0, -3.02)),
    "sparsemixer-zeros": Experts(5, 2, scoring="sparsemixer", logits=(-1.0, 0.0, 0.0, -0.5, 0.0)),
    "input": Experts(8, 1, scoring="sigmoid", weigh="input"),
    "input-Q8_0": Experts(8, 2, (GGMLType.Q8_0,) * 3, 96, 64, scoring="sigmoid", weigh="input"),
    "input-Q4_K": Experts(
        8, 2, (GGMLType.Q4_K, GGMLType.F16, GGMLType.Q4_K), 256, 256, scoring="sigmoid", weigh="input"
    ),
    "norm": Experts(8, 2, norm=True, normalize=True),
    "norm-scale-residual": Experts(8, 2, norm=True, normalize=True, scale=0.22, residual=True),
    "residual": Experts(8, 4, residual=True),
    "cap": Experts(8, 2, cap=0.5, normalize=True),
    # Two experts of a row may have one matrix.
    "shared": Experts(8, 3, shared=2, normalize=True),
    "shared-Q8_0": Experts(8, 3, (GGMLType.Q8_0,) * 3, 96, 64, shared=2),
    # Both experts of all rows have one matrix.
    "shared-by-all": Experts(
        8, 2, (GGMLType.Q8_0,) * 3, 96, 64, shared=2, logits=(0.0, 0.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0)
    ),
    # One expert for all rows, and others without any.
    "all-to-one": Experts(6, 1, logits=(0.0, 1.0, 2.0, 9.0, 1.0, 0.0)),
    "all-to-two": Experts(6, 2, logits=(5.0, 1.0, 2.0, 5.5, 1.0, 0.0)),
    "ties": Experts(6, 3, logits=(1.0, 2.0, 1.0, 2.0, 1.0, 1.0)),
    "all-equal": Experts(6, 4, normalize=True, logits=(0.0,) * 6),
    "ties-Q8_0": Experts(6, 3, (GGMLType.Q8_0,) * 3, 96, 64, logits=(1.0, 2.0, 1.0, 2.0, 1.0, 1.0)),
    "sigmoid-Q8_0": Experts(9, 3, (GGMLType.Q8_0,) * 3, 96, 64, scoring="sigmoid", normalize=True, weights_scale=2.5),
    "150-experts": Experts(150, 8, (GGMLType.Q8_0,) * 3, 96, 64, normalize=True),
    "300-experts": Experts(300, 8, (GGMLType.Q8_0,) * 3, 96, 64, normalize=True),
    "equal-sigmoids": Experts(6, 2, scoring="sigmoid", logits=(50.0, 60.0, 55.0, 60.0, 50.0, 60.0)),
}
for _types in (*_ALL, *_MIXED):
    _sizes = {"width": 256, "ffn": 512} if any(t.block_size == 256 for t in _types) else {"width": 96, "ffn": 64}
    _name = "-".join(t.name for t in dict.fromkeys(_types))
    MOES[_name] = Experts(8, 2, _types, normalize=True, **_sizes)
    MOES[f"norm-residual-{_name}"] = Experts(5, 2, _types, norm=True, normalize=True, residual=True, **_sizes)
# Random logits of Q4_K are too large for weights that rounding leaves alone: with one expert the weight is 1.
for _router, _n_used in ((_T.F16, 2), (_T.Q8_0, 2), (_T.Q4_K, 1)):
    _few = (_T.Q8_0, _T.Q8_0, _T.Q4_0)
    MOES[f"router-{_router.name}"] = Experts(8, _n_used, _few, 256, 64, _router, normalize=True)
