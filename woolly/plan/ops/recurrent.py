"""Recurrent ops: each layer keeps a fixed-size state per sequence (a slot), updated in token order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

from woolly.plan.ops.table import Cost, Load, op, weights_cost
from woolly.plan.recorder import Handle, Recorder
from woolly.plan.state import Slot

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step, Weight

# Head of k for head j of v: "mod" is j % n_k, "div" is j // (n_v / n_k).
HeadOrder = Literal["mod", "div"]

_STATE = "state {entry}"
_MAX_TOKENS = 1 << 24  # slots hold integers of up to 24 bits exactly


def _ngrams_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost of looking up one table row per hash and row of the batch."""
    (table,) = step.weights
    n = plan.values[step.output].width // table.shape[1]
    return Cost(load.total * n * table.type.row_bytes(table.shape[1]), 0)


def slot_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost: the slot is read and written once per sequence, with four products per element and row."""
    numbers = plan.slots[step.integer("entry")].numbers
    return Cost(weights_cost(plan, step, load).n_bytes + 8 * numbers * load.n_sequences, 4 * numbers * load.total)


class RecurrentOps(Recorder):
    """Recurrent ops of the tracer."""

    @op(
        inputs=("x",),
        weights=("weight", "bias?"),
        attributes=("entry", "kernel", "act?", "gap?"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def causal_conv1d(
        self, x: Handle, name: str, *, kernel: int, act: Literal["", "silu"] = "silu", gap: int = 0
    ) -> Handle:
        """Causal depthwise convolution over `kernel` rows, plus `name.bias` if the file has one, then silu.

        `gap` rows are skipped between taps (dilation - 1). Axes of length 1 in the filter tensor are ignored, because
        some converters write them.
        """
        weight = self._weight(name)
        if tuple(n for n in weight.shape if n > 1) != tuple(n for n in (x.width, kernel) if n > 1) or kernel < 2:
            self._fail(f"{weight.name} has shape {weight.shape}, expected ({x.width}, {kernel}) and at least 2 rows")
        weight = replace(weight, shape=(x.width, kernel))
        if act not in ("", "silu"):
            self._fail(f"causal_conv1d got the activation {act!r}; expected silu or none")
        weights = (weight, *self._bias(name, weight))
        if gap < 0:
            self._fail(f"causal_conv1d got a gap of {gap} rows")
        numbers = (kernel - 1) * (gap + 1) * x.width
        return self._slotted("causal_conv1d", (x,), x.width, numbers, weights, kernel=kernel, act=act, gap=gap)

    @op(inputs=("x",), attributes=("entry",), reads=(_STATE,), writes=(_STATE,), part="recurrence", cost=slot_cost)
    def token_shift(self, x: Handle) -> Handle:
        """Return the preceding row of x for each row, with zeros before the first of a sequence."""
        return self._slotted("token_shift", (x,), x.width, x.width)

    @op(
        weights=("table",),
        tables=("table",),
        attributes=("entry", "end", "factors", "sizes", "firsts"),
        reads=(_STATE,),
        writes=(_STATE,),
        cost=_ngrams_cost,
    )
    def ngrams(
        self, table: str, *, end: int, factors: Sequence[int], sizes: Sequence[int], firsts: Sequence[int]
    ) -> Handle:
        """Look up and concatenate the rows of `table` for the n-grams (2 to n tokens) that end with each token.

        The 64-bit hash of an n-gram is the XOR of its tokens, latest first, times `factors`. Each length uses the same
        number of `sizes`, in order: the row is firsts[i] + hash % sizes[i]. Tokens up to an earlier `end` token, and
        positions before the sequence, count as `end`.
        """
        weight, n = self._matrix(table), len(factors)
        if n < 2 or not sizes or len(sizes) % (n - 1) != 0 or len(firsts) != len(sizes):
            self._fail(f"ngrams got {n} factors, {len(sizes)} sizes and {len(firsts)} first rows")
        if not all(0 < factor < 1 << 63 for factor in factors) or not 0 <= end < _MAX_TOKENS:
            self._fail("ngrams got a factor of more than 63 bits, or a token that ends texts of more than 24")
        for size, first in zip(sizes, firsts, strict=True):
            if size < 1 or first < 0 or first + size > weight.shape[0]:
                self._fail(f"ngrams got {size} rows from {first} on of {weight.name}, which has {weight.shape[0]}")
        texts = {
            name: " ".join(map(str, x)) for name, x in (("factors", factors), ("sizes", sizes), ("firsts", firsts))
        }
        return self._slotted("ngrams", (), len(sizes) * weight.shape[1], n - 1, (weight,), end=end, **texts)

    @op(
        inputs=("q", "k", "v", "decay", "beta"),
        attributes=("entry", "heads_k", "heads_v", "order", "eps"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def delta_net(
        self,
        q: Handle,
        k: Handle,
        v: Handle,
        decay: Handle,
        beta: Handle,
        *,
        heads_k: int,
        heads_v: int,
        order: HeadOrder,
        eps: float,
    ) -> Handle:
        """Gated delta rule: S = e^decay S, then S += k (beta (v - S^T k))^T. Returns S^T q / sqrt(len(q)) per head.

        Heads of q and k are L2-normalized first, with eps. `decay` has one number per head of v, or per row of its S.
        """
        self._heads("delta_net", heads_k, q, k)
        self._heads("delta_net", heads_v, v, decay, beta)
        head, head_v = k.width // heads_k, v.width // heads_v
        if q.width != k.width or heads_v % heads_k != 0 or order not in get_args(HeadOrder):
            self._fail(
                f"delta_net got q of {q.width} and k of {k.width}, {heads_k} heads of k for {heads_v} of v, and the"
                f" order {order!r}"
            )
        if decay.width not in (heads_v, heads_v * head) or beta.width != heads_v:
            self._fail(f"delta_net got a decay of {decay.width} and a beta of {beta.width} for {heads_v} heads")
        return self._slotted(
            "delta_net",
            (q, k, v, decay, beta),
            v.width,
            heads_v * head * head_v,
            heads_k=heads_k,
            heads_v=heads_v,
            order=order,
            eps=float(eps),
        )

    @op(
        inputs=("x", "dt", "b", "c"),
        weights=("a", "d"),
        attributes=("entry",),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def scan_mamba(self, x: Handle, dt: Handle, b: Handle, c: Handle, *, a: str, d: str) -> Handle:
        """Mamba: per column S = e^(dt a) S + dt x b. Returns S c + d x. `dt` is positive and as wide as x."""
        weights = (self._weight(a), self._weight(d))
        if dt.width != x.width or b.width != c.width:
            self._fail(f"scan_mamba got x of {x.width}, dt of {dt.width}, b of {b.width} and c of {c.width}")
        if weights[0].shape != (x.width, b.width) or math.prod(weights[1].shape) != x.width:
            self._fail(f"{weights[0].name} has shape {weights[0].shape}, expected ({x.width}, {b.width})")
        return self._slotted("scan_mamba", (x, dt, b, c), x.width, x.width * b.width, weights)

    @op(
        inputs=("x", "dt", "b", "c"),
        weights=("a", "d"),
        attributes=("entry", "groups"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def scan_mamba2(self, x: Handle, dt: Handle, b: Handle, c: Handle, *, a: str, d: str, groups: int) -> Handle:
        """Mamba 2: per head S = e^(dt a) S + b (dt x)^T. Returns S^T c + d x. `dt` is positive, one per head.

        b and c have `groups` heads, each shared by a run of heads of x.
        """
        weights, heads = (self._weight(a), self._weight(d)), dt.width
        self._heads("scan_mamba2", heads, x)
        self._heads("scan_mamba2", groups, b, c)
        if b.width != c.width or heads % groups != 0:
            got = f"got {b.width}, {c.width}, {heads}, {groups}"
            self._fail(f"scan_mamba2 needs b and c of equal width, and heads as a multiple of groups; {got}")
        for weight in weights:
            if math.prod(weight.shape) != heads:
                self._fail(f"{weight.name} has shape {weight.shape}, expected {heads} numbers")
        return self._slotted("scan_mamba2", (x, dt, b, c), x.width, b.width // groups * x.width, weights, groups=groups)

    @op(
        inputs=("r", "w", "k", "v", "a", "b"),
        attributes=("entry", "head"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def wkv7(self, r: Handle, w: Handle, k: Handle, v: Handle, a: Handle, b: Handle, *, head: int) -> Handle:
        """RWKV-7: per head S' = e^w S + k v^T + b (S^T a)^T. Returns S'^T r."""
        for x in (r, w, k, a, b):
            self._same_shape("wkv7", x, v)
        if head < 1 or v.width % head != 0:
            self._fail(f"wkv7 got heads of {head}, which do not divide the width {v.width}")
        return self._slotted("wkv7", (r, w, k, v, a, b), v.width, v.width * head, head=head)

    @op(
        inputs=("q", "k", "v"),
        attributes=("entry", "head", "slope"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="recurrence",
        cost=slot_cost,
    )
    def lightning_attention(self, q: Handle, k: Handle, v: Handle, *, head: int, slope: float) -> Handle:
        """Lightning attention: per head S = e^-rate S + k v^T. Returns S^T q.

        Head h of n has the rate slope * 2^(-8 (h + 1) / n).
        """
        self._same_shape("lightning_attention", q, v)
        self._same_shape("lightning_attention", k, v)
        if head < 1 or v.width % head != 0:
            self._fail(f"lightning_attention got heads of {head}, which do not divide the width {v.width}")
        return self._slotted("lightning_attention", (q, k, v), v.width, v.width * head, head=head, slope=float(slope))

    def _heads(self, op: str, n: int, *values: Handle) -> None:
        for x in values:
            if n < 1 or x.width % n != 0:
                self._fail(f"{op} got a width of {x.width}, which {n} heads do not divide")

    def _slotted(
        self,
        op: str,
        inputs: tuple[Handle, ...],
        width: int,
        numbers: int,
        weights: tuple[Weight, ...] = (),
        **attributes: int | float | str,
    ) -> Handle:
        """Add a step with a new slot."""
        if any(x.value.rows != "batch" for x in inputs):
            self._fail(f"{op} needs all rows of the batch")
        self._state.append(Slot(numbers))
        return self._step(op, inputs, "batch", width, weights, entry=len(self._state) - 1, **attributes)
