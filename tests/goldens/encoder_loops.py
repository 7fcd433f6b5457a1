"""Encoders that transformers has no class for, written down in torch from their papers, one text at a time."""

import torch
from torch.nn.functional import gelu, layer_norm, silu, softmax


class Block:
    """The tensors of one layer."""

    def __init__(self, file, i):
        self.file, self.prefix, self.eps = file, f"blk.{i}.", 1e-5

    def get(self, name):
        array = self.file.tensors.get(self.prefix + name)
        return None if array is None else torch.from_numpy(array.copy())

    def linear(self, x, name):
        bias = self.get(f"{name}.bias")
        y = x @ self.get(f"{name}.weight").T
        return y if bias is None else y + bias

    def norm(self, x, name):
        return layer_norm(x, x.shape[-1:], self.get(f"{name}.weight"), self.get(f"{name}.bias"), self.eps)

    def rms(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.get(f"{name}.weight")


def attention(q, k, v, heads, bias=0.0):
    """Bidirectional attention over all rows; q, k and v as (rows, heads * columns)."""
    q, k, v = (x.reshape(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
    scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + bias
    return (softmax(scores, -1) @ v).transpose(0, 1).flatten(1)


def turned(x, heads, base, adjacent):
    """Rotary positions, as products of complex numbers."""
    n, width = len(x), x.shape[-1] // heads
    y = x.reshape(n, heads, width)
    pairs = (
        y.reshape(n, heads, -1, 2) if adjacent else torch.stack([y[..., : width // 2], y[..., width // 2 :]], dim=-1)
    )
    frequencies = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(n), frequencies)[:, None]
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles))
    return (out if adjacent else out.transpose(-1, -2)).reshape(n, -1)


def embedded(file, ids):
    top = Block(file, 0)
    top.prefix = ""
    x = top.get("token_embd.weight")[ids[0]] + top.get("token_types.weight").reshape(-1, top_width(file))[0]
    return top.norm(x, "token_embd_norm")


def top_width(file):
    return int(file.get("embedding_length"))


def post_norm(file, ids, mix, feed_forward):
    x = embedded(file, ids)
    for i in range(int(file.get("block_count"))):
        b = Block(file, i)
        x = b.norm(x + b.linear(mix(b, x), "attn_output"), "attn_output_norm")
        x = b.norm(x + feed_forward(b, x), "layer_output_norm")
    return x[None]


def jina_bert_v2(file):
    """Scores fall by 2^(-8 h / n) for each position of distance; heads beyond a power of two lie between."""
    heads = int(file.get("attention.head_count"))
    whole = 1 << (heads.bit_length() - 1)
    exponents = [8 * (h + 1) / whole for h in range(whole)]
    exponents += [8 * (h + 0.5) / whole for h in range(heads - whole)]
    slopes = torch.tensor([2.0**-e for e in exponents])[:, None, None]

    def mix(b, x):
        at = torch.arange(len(x))
        q, k, v = (b.linear(x, f"attn_{name}") for name in "qkv")
        return attention(q, k, v, heads, -slopes * (at[:, None] - at).abs())

    def feed_forward(b, x):
        return b.linear(gelu(b.linear(x, "ffn_gate")) * b.linear(x, "ffn_up"), "ffn_down")

    return lambda ids, types: post_norm(file, ids, mix, feed_forward)


def nomic_bert_moe(file):
    """Each second layer has experts: the two best of four, by shares that are not made to sum to 1."""
    heads, base = int(file.get("attention.head_count")), float(file.get("rope.freq_base"))

    def mix(b, x):
        q, k, v = b.linear(x, "attn_qkv").chunk(3, dim=-1)
        return attention(turned(q, heads, base, False), turned(k, heads, base, False), v, heads)

    def feed_forward(b, x):
        if b.get("ffn_gate_inp.weight") is None:
            return b.linear(gelu(b.linear(x, "ffn_up")), "ffn_down")
        shares, chosen = softmax(b.linear(x, "ffn_gate_inp"), -1).topk(2)
        up, down = b.get("ffn_up_exps.weight"), b.get("ffn_down_exps.weight")
        rows = [
            sum(s * (down[e] @ gelu(up[e] @ row)) for s, e in zip(shares[i], chosen[i], strict=True))
            for i, row in enumerate(x)
        ]
        return torch.stack(rows)

    return lambda ids, types: post_norm(file, ids, mix, feed_forward)


def neo_bert(file):
    """q, k and v follow each other in one matrix, as other engines read these files."""
    heads, base = int(file.get("attention.head_count")), float(file.get("rope.freq_base"))

    def run(ids, types):
        top = Block(file, 0)
        top.prefix = ""
        x = top.get("token_embd.weight")[ids[0]]
        for i in range(int(file.get("block_count"))):
            b = Block(file, i)
            q, k, v = b.linear(b.rms(x, "attn_norm"), "attn_qkv").chunk(3, dim=-1)
            mixed = attention(turned(q, heads, base, True), turned(k, heads, base, True), v, heads)
            x = x + b.linear(mixed, "attn_output")
            gate, up = b.linear(b.rms(x, "ffn_norm"), "ffn_up").chunk(2, dim=-1)
            x = x + b.linear(silu(gate) * up, "ffn_down")
        return top.rms(x, "enc.output_norm")[None]

    return run
