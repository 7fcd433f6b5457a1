"""Sparse attention index: top-k selection of the attended positions with separate index keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woolly.plan.ops.table import OPS, Cost, Load, Op, op
from woolly.plan.recorder import Handle, Recorder
from woolly.plan.state import Paged

if TYPE_CHECKING:
    from woolly.plan.plan import Plan, Step

_CHOICE = ("entry", "head_dim", "n", "block", "local?", "every?", "whole?")


def _index_cost(plan: Plan, step: Step, load: Load) -> Cost:
    """Return the cost of an index: all keys are read once per sequence, with one product per element and head."""
    entry, last = plan.paged[step.integer("entry")], load.first + load.n_rows
    share = entry.width / sum(other.width for other in plan.paged.values())
    seen = sum(p + 1 for p in range(load.first, last))
    products = plan.values[step.inputs[0]].width * seen * load.n_sequences
    return Cost(load.cache_bytes * share * last * load.n_sequences, products)


class IndexerOps(Recorder):
    """Sparse-attention ops of the tracer."""

    @op(
        inputs=("q", "k", "weights?"),
        attributes=_CHOICE,
        reads=("state {entry}",),
        writes=("state {entry}",),
        part="attention",
        cost=_index_cost,
    )
    def indexer(
        self,
        q: Handle,
        k: Handle,
        weights: Handle | None = None,
        *,
        head_dim: int,
        n: int,
        block: int = 1,
        local: int = 0,
        every: int = 0,
        whole: bool = False,
    ) -> Handle:
        """Store k in a new entry, and return the highest-scoring positions, ascending and padded with -1.

        With `weights` [heads], the score of a position is the sum over heads of weight * relu(q · k). Without weights,
        each head chooses separately. A row chooses `n` blocks of `block` positions by their maximum score. Ties go to
        the earlier block, NaN ranks last, and the latest `local` blocks are always chosen. With `every` = m, candidates
        are the last positions of runs of m. With `whole`, the result has all positions of the chosen runs, and the
        positions after the last complete run. Only positions up to the row's own are candidates, so batching does not
        affect the choice.
        """
        if k.width != head_dim or q.width % head_dim != 0:
            self._fail(f"indexer got q of width {q.width} and k of {k.width} for heads of {head_dim}")
        heads = q.width // head_dim
        if weights is not None and weights.width != heads:
            self._fail(f"indexer got {weights.width} weights for {heads} heads")
        if n < 1 or block < 1 or not 0 <= local <= n or (block > 1 and local == 0):
            self._fail(f"indexer got {n} blocks of {block} positions, {local} of them local; a row's own block is one")
        if whole and (not every or weights is None):
            self._fail("indexer gives whole runs of one choice, and got no length of them or a choice of each head")
        if every and (every < 2 or block > 1 or local):
            self._fail(f"indexer got blocks of {block} positions, {local} of them local, among each {every}-th")
        self._state.append(Paged(1, head_dim, head_dim, v_in_k=True))
        return self._step(
            "indexer",
            (q, k) if weights is None else (q, k, weights),
            "batch",
            n * every + every - 1 if whole else (1 if weights is not None else heads) * n * block,
            entry=len(self._state) - 1,
            head_dim=head_dim,
            n=n,
            block=block,
            local=local,
            every=every,
            whole=int(whole),
        )


# Top-k selection by q over keys stored by `store`.
OPS["index_topk"] = Op(
    "index_topk",
    inputs=("q", "weights?"),
    attributes=_CHOICE,
    reads=("state {entry}",),
    scratch=("picks",),
    part="attention",
    cost=_index_cost,
    fused=True,
)
