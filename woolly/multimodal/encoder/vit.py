"""Transformer layer shared by vision encoders, and patch layout of a square image."""

from __future__ import annotations

from typing import Literal

import numpy as np

from woolly.errors import UnsupportedError
from woolly.multimodal.encoder.params import Encoder, TowerParams
from woolly.multimodal.encoder.patch_layout import Grid, PatchLayout, merge_order
from woolly.plan import Handle, Rope, Tracer
from woolly.plan.ops.attention import Mask
from woolly.plan.ops.basic import Act

Norm = Literal["layer", "rms"]


def normed(p: Tracer, x: Handle, name: str, hp: Encoder, norm: Norm = "layer") -> Handle:
    """Apply a norm."""
    return p.rms_norm(x, name, eps=hp.eps) if norm == "rms" else p.layer_norm(x, name, eps=hp.eps)


def layer(
    p: Tracer,
    x: Handle,
    hp: Encoder,
    index: int,
    *,
    act: Act,
    norm: Norm = "layer",
    rope: Rope | None = None,
    mask: Mask = "all",
    tower: str = "v",
) -> Handle:
    """Build pre-norm attention and MLP, with layer scale if the file has it."""
    with p.scope(f"{tower}.blk.{index}"):
        h = normed(p, x, "ln1", hp, norm)
        if p.has("attn_qkv"):
            kv = (p.rows("attn_qkv") - hp.width) // 2  # fewer than the width for grouped heads
            q = p.linear(h, "attn_qkv", width=hp.width, first=0)
            k, v = (p.linear(h, "attn_qkv", width=kv, first=hp.width + i * kv) for i in range(2))
        else:
            q, k, v = (p.linear(h, f"attn_{one}", width=hp.width) for one in "qkv")
        if p.has("attn_q_norm"):
            q, k = p.rms_norm(q, "attn_q_norm", eps=hp.eps), p.rms_norm(k, "attn_k_norm", eps=hp.eps)
        if rope is not None:
            q, k = p.rope(q, rope), p.rope(k, rope)
        a = p.attention(q, k, v, head_dim=hp.head_dim, scale=hp.head_dim**-0.5, mask=mask)
        a = p.linear(a, "attn_out", width=hp.width)
        x = x + (a * p.vector("ls1") if p.has("ls1") else a)
        y = _feed_forward(p, normed(p, x, "ln2", hp, norm), hp, act)
        return x + (y * p.vector("ls2") if p.has("ls2") else y)


def _feed_forward(p: Tracer, h: Handle, hp: Encoder, act: Act) -> Handle:
    # Old converters swapped the names of the two matrices.
    up, down = ("ffn_up", "ffn_down") if p.rows("ffn_down") == hp.width else ("ffn_down", "ffn_up")
    if not p.has("ffn_gate"):
        return p.linear(p.unary(p.linear(h, up, width=p.rows(up)), act), down, width=hp.width)
    if act not in ("silu", "gelu_erf"):
        raise UnsupportedError(f"gates with activation {act} are not supported yet in vision encoders")
    # The gate comes first, so one step computes both products and the activation.
    gate, y = p.linear(h, "ffn_gate", width=p.rows(up)), p.linear(h, up, width=p.rows(up))
    return p.linear(p.glu(gate, y, act), down, width=hp.width)


def mlp(p: Tracer, x: Handle, first: str, second: str, act: Act = "gelu_erf") -> Handle:
    """Build an MLP: two matrices with an activation in between."""
    return p.linear(p.unary(p.linear(x, first, width=p.rows(first)), act), second, width=p.rows(second))


def with_class(p: Tracer, x: Handle) -> Handle:
    """Add the class row to x, in the layout of `square`."""
    if p.has("v.patch_embd.bias"):
        x = p.embedding_bag(x, "v.patch_embd.bias", first=2)
    return p.embedding_bag(x, "v.class_embd", first=1)


def vision_rope(hp: TowerParams) -> Rope:
    """Return 2D rope: half of the pairs rotate by the line, half by the column, with the same frequencies."""
    quarter = hp.head_dim // 4
    return Rope(hp.head_dim, hp.head_dim, 10000.0, "neox", sections=(quarter, quarter), spectrum="each")


def max_patches(hp: TowerParams) -> int:
    """Return the maximum number of patches, for families whose images never exceed the trained size."""
    return hp.side**2


def square(hp: TowerParams, grid: Grid, *, has_class: bool = False) -> PatchLayout:
    """Return the patches of an image of the trained size in merge order, optionally after a class row.

    Columns of `gather_rows`: index in the position table, index of the class row, and an index that cancels the patch
    bias for the class row.
    """
    if grid != (1, hp.side, hp.side):
        raise ValueError(f"the encoder reads images of {hp.side} x {hp.side} patches, not {grid[1]} x {grid[2]}")
    order = merge_order(grid, hp.merge)
    n_patches = len(order)
    if has_class:
        order = np.concatenate([np.array([-1], np.int32), order])
    is_patch = order >= 0
    is_class = np.where(is_patch, -1, 0)
    gather_rows = np.stack([order + has_class, is_class, is_class], axis=1).astype(np.int32)
    gather_weights = np.tile(np.array([1, 1, -1], np.float32), (len(order), 1))
    outputs = np.arange(int(has_class), int(has_class) + n_patches, hp.merge**2, dtype=np.int32)
    return PatchLayout(order, outputs, gather_rows=gather_rows, gather_weights=gather_weights)
