"""Compressed attention: one row per block of positions, attended together with the latest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.plan.ops.recurrent import slot_cost
from woolly.plan.ops.table import Cost, Load, op
from woolly.plan.recorder import Handle, Recorder
from woolly.plan.state import Paged, Slot

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step

_STATE = "state {entry}"


def _compressed_attention_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost: the latest rows and all visible blocks are read once per sequence.

    Each element has two products.
    """
    window, every, last = step.integer("window"), step.integer("every"), load.first + load.n_rows
    entry = plan.paged[step.integer("entry")]
    share = entry.width / sum(other.width for other in plan.paged.values())
    most = plan.values[step.inputs[3]].width if len(step.inputs) > 3 else last
    read = min(last, window + load.n_rows - 1) + min(last // every, most * load.n_rows)
    seen = sum(min(p + 1, window) + min((p + 1) // every, most) for p in range(load.first, last))
    products = 2 * plan.values[step.inputs[0]].width * seen * load.n_sequences
    return Cost(load.cache_bytes * share * read * load.n_sequences, products)


class CompressedAttentionOps(Recorder):
    """Compressed-attention ops of the tracer."""

    @op(
        inputs=("kv", "gate"),
        weights=("bias",),
        attributes=("entry", "every"),
        reads=(_STATE,),
        writes=(_STATE,),
        part="attention",
        cost=slot_cost,
    )
    def compress(self, kv: Handle, gate: Handle, bias: str, *, every: int, width: int) -> Handle:
        """Pool each block of `every` positions into one row, at its last position, and zeros elsewhere.

        Each column is the sum of kv over the block, weighted by softmax(gate + bias[position in the block]). If kv is
        twice as wide as the result, blocks overlap: the first half of the columns comes from the preceding block, the
        second half from the block itself.
        """
        weight = self._matrix(bias)
        if (kv.width, gate.width) not in ((width, width), (2 * width, 2 * width)) or every < 2:
            self._fail(f"compress got {kv.width} and {gate.width} columns for blocks of {every} rows of {width}")
        if weight.shape != (every, kv.width):
            self._fail(f"{weight.name} has shape {weight.shape}, expected ({every}, {kv.width})")
        if "output" in (kv.value.rows, gate.value.rows):
            self._fail("compress needs all rows of the batch")
        n_rows = every * (kv.width // width)
        self._state.append(Slot((n_rows - 1) * 2 * kv.width))
        return self._step("compress", (kv, gate), "batch", width, (weight,), entry=len(self._state) - 1, every=every)

    @op(inputs=("x",), attributes=("entry",), writes=(_STATE,), part="attention")
    def cache_rows(self, x: Handle, *, window: int = 0) -> Handle:
        """Store the rows of x in a new entry (the latest `window`; 0: all) and return x."""
        self._state.append(Paged(1, x.width, x.width, v_in_k=True, window=window))
        return self._step("cache_rows", (x,), "batch", x.width, entry=len(self._state) - 1)

    @op(
        inputs=("q", "latest", "compressed", "chosen?"),
        weights=("sinks",),
        attributes=("entry", "blocks", "head_dim", "scale", "window", "every"),
        reads=(_STATE, "state {blocks}"),
        part="attention",
        cost=_compressed_attention_cost,
    )
    def attend_compressed(
        self,
        q: Handle,
        latest: Handle,
        compressed: Handle,
        chosen: Handle | None = None,
        *,
        head_dim: int,
        scale: float,
        window: int,
        every: int,
        sinks: str,
    ) -> Handle:
        """Softmax attention of q over the latest `window` rows and the preceding blocks, in one softmax.

        `latest` and `compressed` are results of `cache_rows`, used as keys and values. A block of `every` positions is
        the row at its last position. A row attends to the blocks that end at or before it, or only to those selected by
        `indexer`. `sinks` names one attention sink per head.
        """
        made = {step.outputs[0]: step for step in self._steps if step.op in ("cache_rows", "indexer")}
        kept = [made.get(x.value.id) for x in (latest, compressed)]
        if any(step is None or step.op != "cache_rows" for step in kept) or {latest.width, compressed.width} != {
            head_dim
        }:
            self._fail(f"attend_compressed needs two results of cache_rows with {head_dim} columns")
        entries = [step.integer("entry") for step in kept if step is not None]
        windows = [entry.window for i in entries if isinstance(entry := self._state[i], Paged)]
        if windows != [window, 0] or every < 2:
            self._fail(
                f"attend_compressed got a window of {window} and blocks of {every}, which do not fit what is kept"
            )
        if chosen is not None and (
            (step := made.get(chosen.value.id)) is None
            or step.op != "indexer"
            or (step.integer("every"), step.integer("n")) != (every, chosen.width)
        ):
            self._fail("attend_compressed got chosen blocks that are not the result of an indexer")
        weight = self._vector(sinks)
        if q.width % head_dim != 0 or weight.shape != (q.width // head_dim,):
            self._fail(f"{weight.name} has {weight.shape[0]} elements for a q of width {q.width}")
        return self._step(
            "attend_compressed",
            (q, latest, compressed) if chosen is None else (q, latest, compressed, chosen),
            "batch",
            q.width,
            (weight,),
            entry=entries[0],
            blocks=entries[1],
            head_dim=head_dim,
            scale=float(scale),
            window=window,
            every=every,
        )
