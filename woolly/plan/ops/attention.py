"""Ops over the KV cache."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from woolly.plan.ops.table import OPS, Cost, Load, Op, op
from woolly.plan.recorder import Handle, Recorder
from woolly.plan.state import Paged

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step, Weight
    from woolly.plan.rope_scaling import Rope

_ATTENTION = (
    *("entry", "head_dim", "scale", "mask?", "window?", "softcap?"),
    *("temper?", "temper_length?", "temper_offset?", "alibi?", "roles?", "chosen?", "block?"),
)

# "": causal, limited to the latest `window` positions; `Batch.attn_ranges` may add later positions. "causal": causal
# without that exception. "chunked": causal, since the last multiple of the window. "all": bidirectional, or positions
# at most half a window away. "block": the range in `Batch.attn_ranges`. For a decoder whose encoder rows come first:
# "since" is causal from the first position of the range on (self-attention), "before" attends to the positions before
# that one (cross-attention).
Mask = Literal["", "causal", "chunked", "all", "block", "since", "before"]


def _cache_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost of attention: all visible K and V are read once per sequence, with two products per element."""
    window, last = step.integer("window"), load.first + load.n_rows
    entry = plan.paged[step.integer("entry")]
    share = entry.width / sum(other.width for other in plan.paged.values())
    read = min(last, window + load.n_rows - 1) if window else last
    if step.text("mask") in ("all", "block"):
        seen = load.n_rows * (min(last, window + 1) if window else last)
    else:
        seen = sum(min(p + 1, window) if window else p + 1 for p in range(load.first, last))
    products = plan.values[step.inputs[0]].width // entry.k_dim * (entry.k_dim + entry.v_dim)
    return Cost(load.cache_bytes * share * read * load.n_sequences, products * seen * load.n_sequences)


class AttentionOps(Recorder):
    """Attention ops of the tracer."""

    @op(inputs=("x",), weights=("divisors?",), attributes=("rope",))
    def rope(self, x: Handle, rope: Rope, divisors: str | None = None) -> Handle:
        """Rotate each head by its token's position. `divisors` names a tensor that divides the frequencies.

        The tensor has one element per rotated pair, or one per pair of the head, of which the first ones are used.
        """
        if x.width % rope.head_dim != 0:
            self._fail(f"rope got heads of {rope.head_dim}, which do not divide the width {x.width}")
        if not 0 < rope.n_rot <= rope.head_dim or rope.n_rot % 2 != 0:
            self._fail(
                f"rope rotates {rope.n_rot} of {rope.head_dim} elements; expected an even number of at most the head's"
            )
        weights: tuple[Weight, ...] = ()
        if divisors is not None:
            weight = self._vector(divisors)
            if weight.shape[0] not in (rope.n_rot // 2, rope.head_dim // 2):
                self._fail(f"{weight.name} has shape {weight.shape}, expected ({rope.n_rot // 2},)")
            weights = (weight,)
        return self._step("rope", (x,), x.value.rows, x.width, weights, rope=rope)

    @op(
        inputs=("q", "k?", "v?", "chosen?"),
        weights=("sinks?", "distances?"),
        attributes=_ATTENTION,
        reads=("state {entry}",),
        writes=("state {entry}",),
        part="attention",
        cost=_cache_cost,
    )
    def attention(
        self,
        q: Handle,
        k: Handle | None = None,
        v: Handle | None = None,
        *,
        head_dim: int,
        scale: float,
        v_dim: int = 0,
        like: Handle | int | None = None,
        mask: Mask = "",
        window: int = 0,
        softcap: float = 0.0,
        sinks: str | None = None,
        temper: float = 0.0,
        temper_length: int = 1,
        temper_offset: int = 0,
        alibi: float = 0.0,
        distances: str | None = None,
        chosen: Handle | None = None,
    ) -> Handle:
        """Store k and v in a new entry of the state, then attend over it. Heads of v and k may differ in width.

        Without v, V is the first `v_dim` columns of each head of k. `like` is the result of an earlier attention whose
        entry is shared; k and v are stored there if given. In a draft, an integer is an entry of the main model.

        `window` n limits attention to the latest n positions, including the row's position. With the mask "chunked", it
        begins at the last multiple of n; with "all", it has n // 2 positions on each side. 0 means no limit. With
        "all", all steps share one entry, because nothing is cached between batches. `chosen` is the result of
        `indexer`: rows attend only to these positions, which are shared by all heads or separate for each KV head.

        `softcap` c replaces scores with c * tanh(score / c) unless it is 0. `temper` t multiplies q by 1 + t * log(1 +
        (position + temper_offset) // temper_length). `sinks` names one attention sink per head. `alibi` is the largest
        exponent of the head slopes, which are applied before the softcap. `distances` names a table [buckets, heads] of
        T5's relative position biases. With the mask "all", half of the buckets are for later rows; with "since", all
        are for earlier rows.
        """
        if window and mask in ("block", "since", "before"):
            self._fail(f"attention with the mask {mask!r} must not have a window, because the batch has the ranges")
        if window == 0 and mask == "chunked":
            self._fail(f"attention with the mask {mask!r} needs a window")
        if temper and temper_length < 1:
            self._fail(f"attention got a temper_length of {temper_length}; expected at least 1")
        if like is not None and (k is None) == (v is None):
            index, entry = self._shared(like, head_dim, window)
            if k is not None and replace(self._paged(k, v, head_dim, v_dim, 0), window=entry.window) != entry:
                self._fail("attention got k and v with other heads than the attention that it is like")
        elif like is None and k is not None:
            is_whole = mask in ("all", "block")
            entry = self._paged(k, v, head_dim, v_dim, 0 if is_whole else window)
            index = self._state.index(entry) if is_whole and entry in self._state else len(self._state)
            self._state[index:] = self._state[index:] or [entry]
        else:
            self._fail("attention needs k, or an earlier attention that it is like, with k and v or without both")
        if q.width % (entry.heads * head_dim) != 0:
            self._fail(
                f"attention got q of width {q.width}, which is not a multiple of the k width {entry.heads * head_dim}"
            )
        n_heads = q.width // head_dim
        weights = {} if sinks is None else {"sinks": self._vector(sinks)}
        if weights and weights["sinks"].shape != (n_heads,):
            self._fail(f"{weights['sinks'].name} has {weights['sinks'].shape[0]} elements for {n_heads} heads")
        n_chosen, block = (0, 0) if chosen is None else self._choice(chosen, entry)
        if chosen is not None and (window or mask or alibi):
            self._fail("attention to chosen positions cannot have a window, a mask or a bias by distance")
        if (alibi and mask in ("chunked", "before")) or (distances is not None and mask not in ("all", "since")):
            self._fail(f"attention with the mask {mask!r} does not support this bias by distance")
        if distances is not None:
            weights["distances"] = self._matrix(distances)
            # With 512 buckets or more (256 for earlier rows only), a bucket would begin beyond the maximum distance of
            # 128.
            most = 512 if mask == "all" else 256
            if weights["distances"].shape[1] != n_heads or not 4 <= weights["distances"].shape[0] < most:
                self._fail(f"{weights['distances'].name} has shape {weights['distances'].shape} for {n_heads} heads")
        return self._step(
            "attention",
            tuple(handle for handle in (q, k, v, chosen) if handle is not None),
            "batch",
            n_heads * entry.v_dim,
            tuple(weights.values()),
            entry=index,
            head_dim=head_dim,
            scale=float(scale),
            mask=mask,
            window=window,
            softcap=float(softcap),
            temper=float(temper),
            temper_length=temper_length if temper else 0,
            alibi=float(alibi),
            roles="" if distances is None else " ".join(weights),
            temper_offset=temper_offset if temper else 0,
            chosen=n_chosen,
            block=block,
        )

    def _choice(self, chosen: Handle, entry: Paged) -> tuple[int, int]:
        """Return the maximum number of chosen positions of a row, and the block size."""
        made = [step for step in self._steps if step.op == "indexer" and step.outputs == (chosen.value.id,)]
        if not made:
            self._fail("attention got chosen positions that are not the result of an indexer")
        if made[0].integer("whole"):
            return chosen.width, made[0].integer("every")
        n = made[0].integer("n") * made[0].integer("block")
        if chosen.width not in (n, n * entry.heads):
            self._fail(f"attention got the choices of {chosen.width // n} heads for {entry.heads} KV heads")
        return n, made[0].integer("block")

    def _paged(self, k: Handle, v: Handle | None, head_dim: int, v_dim: int, window: int) -> Paged:
        """Return the cache entry for k and v."""
        heads = k.width // head_dim
        if k.width % head_dim != 0 or heads == 0 or (v is not None and v.width % heads != 0):
            widths = f"k of width {k.width}" + (f" and v of {v.width}" if v is not None else "")
            self._fail(f"attention got {widths}; expected multiples of {head_dim} and of the number of heads")
        if v is not None:
            return Paged(heads, head_dim, v.width // heads, window=window)
        if not 0 < v_dim <= head_dim:
            self._fail(f"attention without v got a v_dim of {v_dim}; expected 1 to {head_dim}")
        return Paged(heads, head_dim, v_dim, v_in_k=True, window=window)

    def _shared(self, like: Handle | int, head_dim: int, window: int) -> tuple[int, Paged]:
        """Return index and entry of an earlier attention, whose window is widened to cover both."""
        if isinstance(like, int):
            index = like
        else:
            made = [step for step in self._steps if step.op == "attention" and step.outputs == (like.value.id,)]
            if not made:
                self._fail("`like` of attention is not the result of an attention")
            index = made[0].integer("entry")
        entry = self._state[index]
        assert isinstance(entry, Paged)
        if entry.k_dim != head_dim:
            self._fail(f"attention got heads of {head_dim}, but the one that it is like keeps heads of {entry.k_dim}")
        self._state[index] = replace(entry, window=max(entry.window, window) if entry.window and window else 0)
        return index, entry


# Applies norm and rope to q and k per head, subtracts a bias from k, stores k and v in the cache, and returns q.
OPS["store"] = Op(
    "store",
    inputs=("q", "k", "v?"),
    weights=("q_norm?", "k_norm?", "divisors?", "k_bias?"),
    attributes=("roles", "rope", "eps", "entry", "head_dim"),
    writes=("state {entry}",),
    fused=True,
)

# Softmax attention of q over the cache. With `k_bias`, keys are stored without their bias, and its rotated value is
# added here.
OPS["attend"] = Op(
    "attend",
    inputs=("q", "chosen?"),
    weights=("sinks?", "distances?", "k_bias?", "divisors?"),
    attributes=(*_ATTENTION, "rope?"),
    reads=("state {entry}",),
    scratch=("partials",),
    part="attention",
    cost=_cache_cost,
    fused=True,
    cuts_rows=True,
)
