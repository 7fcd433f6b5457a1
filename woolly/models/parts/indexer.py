"""Sparse attention index (lightning indexer): a small attention that selects the positions to attend to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from woolly.errors import ModelError, UnsupportedError
from woolly.gguf.keys import Keys
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.rope_scaling import RopeStyle


@dataclass(frozen=True)
class Index:
    """Parameters of the index heads, and of their selection."""

    heads: int
    rope: Rope  # rope of index keys, on the first columns
    n: int  # number of blocks selected
    block: int = 1  # positions per block
    local: int = 0  # latest blocks; always selected
    own: tuple[bool, ...] = ()  # per layer; False: reuse an earlier selection; empty: decided by tensors

    def is_own(self, p: Tracer, layer: int | None) -> bool:
        """Return True if the layer has its own index. For draft blocks, this depends on the tensors."""
        if layer is None or (layer > 0 and not self.own):
            return p.has("indexer.attn_k")
        return layer == 0 or self.own[layer]


def read_index(keys: Keys, rope: Rope, style: RopeStyle, n_layers: int, *, has_blocks: bool = False) -> Index | None:
    """Read the index, or return None if rows attend to all positions of the context."""
    n = keys.positive("attention.indexer.top_k")
    heads, head_dim = keys.positive("attention.indexer.head_count"), keys.positive("attention.indexer.key_length")
    block, local = _read_blocks(keys, n, has_blocks)
    if keys.context <= n * block:
        keys.positions = n * block
        return None
    types = "attention.indexer.types"
    own = keys.pattern(types, n_layers, 1) if keys.has(types) else ()
    return Index(heads, replace(rope, head_dim=head_dim, style=style), n, block, local, own)


def _read_blocks(keys: Keys, n: int, has_blocks: bool) -> tuple[int, int]:
    """Return positions per block and the number of latest blocks that are always selected (1 and 0 without blocks)."""
    size, latest = "attention.indexer.block_size", "attention.indexer.local_blocks"
    block, local = keys.positive(size, 1), keys.integer(latest, 0)
    if not has_blocks:
        for name, value, usual in ((size, block, 1), (latest, local, 0)):
            if value != usual:
                raise UnsupportedError(
                    f"metadata key {keys.architecture}.{name} is {value}, but the index of {keys.architecture} selects"
                    " single positions"
                )
    least = int(block > 1)  # the current block, which is incomplete
    if not least <= local <= n:
        raise ModelError(f"metadata key {keys.architecture}.{latest} is {local}; expected {least} to {n}")
    return block, local


def indexed(p: Tracer, h: Handle, low: Handle, index: Index, *, eps: float = 1e-6, is_last: bool = False) -> Handle:
    """Select positions (DeepSeek V3.2, GLM 5). `low` is the common input of the index's q and attention's q.

    Rope rotates the first columns of each head, or the last columns with `is_last`.
    """
    heads, head_dim, rope = index.heads, index.rope.head_dim, index.rope

    def with_rope(x: Handle, n: int) -> Handle:
        straight = head_dim - rope.n_rot
        if not is_last or straight == 0:
            return p.rope(x, rope)
        end = p.slice(x, first=straight, width=rope.n_rot, groups=n)
        end = p.rope(end, replace(rope, head_dim=rope.n_rot))
        return p.concat(p.slice(x, first=0, width=straight, groups=n), end, heads=n)

    with p.scope("indexer"):
        q = with_rope(p.linear(low, "attn_q_b", width=heads * head_dim), heads)
        k = with_rope(p.layer_norm(p.linear(h, "attn_k", width=head_dim), "k_norm", eps=eps), 1)
        weights = p.linear(h, "proj", width=heads) * (heads * head_dim) ** -0.5
    return p.indexer(q, k, weights, head_dim=head_dim, n=index.n)


def indexed_blocks(p: Tracer, h: Handle, index: Index, *, eps: float) -> Handle:
    """Select blocks of positions. Index head i selects for KV head i (MiniMax M3)."""
    head_dim, made = index.rope.head_dim, {}
    with p.scope("indexer"):
        for x, heads in (("q", index.heads), ("k", 1)):
            normed = p.rms_norm(p.linear(h, f"{x}_proj", width=heads * head_dim), f"{x}_norm", eps=eps)
            made[x] = p.rope(normed, index.rope)
    return p.indexer(made["q"], made["k"], head_dim=head_dim, n=index.n, block=index.block, local=index.local)
