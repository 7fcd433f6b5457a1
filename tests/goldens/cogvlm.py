"""CogVLM, which transformers has no class for, written down in torch from what its makers published, in f64.

A row of an image goes through the visual expert if the row after it is of the image, too: so the last one, which
ends the image, is as a token. All patches have one position; the rows before and after them have their own.
"""

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm, silu

from tests.goldens.loops import Block, mixed


def numbers(file, name):
    return torch.from_numpy(np.array(file.tensors[name], np.float64))


def tower(file):
    """Rows of an image, then the two of the file that come before and after them."""

    def linear(x, name):
        bias = f"{name}.bias"
        y = x @ numbers(file, f"{name}.weight").T
        return y + numbers(file, bias) if bias in file.tensors else y

    def norm(x, name, eps):
        return layer_norm(x, x.shape[-1:], numbers(file, f"{name}.weight"), numbers(file, f"{name}.bias"), eps)

    def rows(one):
        width, eps = int(file.get("vision.embedding_length")), float(file.get("vision.attention.layer_norm_epsilon"))
        heads = int(file.get("vision.attention.head_count"))
        filters = numbers(file, "v.patch_embd.weight").reshape(width, -1)
        x = torch.from_numpy(one.values.astype(np.float64)) @ filters.T + numbers(file, "v.patch_embd.bias")
        x = torch.cat([numbers(file, "v.class_embd").reshape(1, -1), x]) + numbers(file, "v.position_embd.weight")
        for i in range(int(file.get("vision.block_count"))):
            blk = f"v.blk.{i}"
            q, k, v = linear(x, f"{blk}.attn_qkv").reshape(len(x), 3, heads, -1).permute(1, 2, 0, 3)
            scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
            a = (scores @ v).transpose(0, 1).reshape(len(x), -1)
            x = x + norm(linear(a, f"{blk}.attn_out"), f"{blk}.ln1", eps)
            x = x + norm(linear(gelu(linear(x, f"{blk}.ffn_up")), f"{blk}.ffn_down"), f"{blk}.ln2", eps)
        y = gelu(norm(linear(x[1:], "mm.model.fc"), "mm.post_fc_norm", 1e-5))
        y = linear(silu(linear(y, "mm.gate")) * linear(y, "mm.up"), "mm.down")
        return torch.cat([y, *(numbers(file, name).reshape(1, -1) for name in ("v.boi", "v.eoi"))])

    return rows


def turned(x, base, positions):
    """Rotary positions of (heads, rows, columns), as NeoX."""
    n = x.shape[-1] // 2
    angles = torch.outer(positions.double(), base ** (-torch.arange(n).double() / n))
    left, right = x[..., :n], x[..., n:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def logits(file, before, rows=None, after=()):
    """Logits of all rows: tokens, an image's rows from its first to its last, tokens."""
    top, base = Block(file), float(file.get("rope.freq_base"))
    table = top.get("token_embd.weight")
    rows = torch.zeros(0, table.shape[1]).double() if rows is None else rows
    x = torch.cat([table[list(before)], rows, table[list(after)]])
    is_image = torch.zeros(len(x), dtype=torch.bool)
    is_image[len(before) : len(before) + len(rows)] = True
    visual = is_image & torch.cat([is_image[1:], torch.tensor([False])])
    inside = visual & torch.cat([torch.tensor([False]), is_image[:-1]])  # patches
    steps = ~(inside & torch.cat([torch.tensor([False]), inside[:-1]]))  # a patch after another stays
    positions = steps.long().cumsum(0) - 1
    for i in range(int(file.get("block_count"))):
        b = Block(file, i)

        def by_kind(y, name, other, b=b):
            return torch.where(visual[:, None], b.linear(y, other), b.linear(y, name))

        heads = b.count("head_count")
        qkv = by_kind(b.norm(x, "attn_norm"), "attn_qkv", "vis_attn_qkv")
        q, k, v = qkv.reshape(len(x), 3, heads, -1).permute(1, 2, 0, 3)
        a = mixed(turned(q, base, positions), turned(k, base, positions), v)
        x = x + by_kind(a, "attn_output", "vis_attn_output")
        h = b.norm(x, "ffn_norm")
        h = silu(by_kind(h, "ffn_gate", "vis_gate")) * by_kind(h, "ffn_up", "vis_up")
        x = x + by_kind(h, "ffn_down", "vis_down")
    return top.linear(top.norm(x, "output_norm"), "output").numpy()
