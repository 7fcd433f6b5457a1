"""Decoders that transformers has no class for, written down in torch from their papers, in f64."""

import math
from functools import partial

import torch
from torch.nn.functional import gelu, layer_norm, relu, silu, softmax, softplus


class Block:
    """The tensors of one layer, or of none."""

    def __init__(self, file, i=None):
        self.file, self.prefix = file, "" if i is None else f"blk.{i}."
        self.eps = float(file.get("attention.layer_norm_rms_epsilon", file.get("attention.layer_norm_epsilon")))

    def get(self, name):
        array = self.file.tensors.get(self.prefix + name)
        return None if array is None else torch.from_numpy(array.astype("float64"))

    def linear(self, x, name):
        bias = self.get(f"{name}.bias")
        y = x @ self.get(f"{name}.weight").T
        return y if bias is None else y + bias

    def norm(self, x, name):
        weight = self.get(f"{name}.weight")
        weight = self.get(name) if weight is None else weight
        if self.file.get("attention.layer_norm_epsilon") is not None:
            return layer_norm(x, x.shape[-1:], weight, self.get(f"{name}.bias"), self.eps)
        weight = weight[:, None] if weight.ndim == 2 else weight  # each head has its own
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * weight

    def heads(self, x, name, n):
        """Q, k or v as (heads, rows, columns), from a matrix of its own or from one of all three."""
        counts = [self.count("head_count"), *[self.count("head_count_kv")] * 2]
        if self.get("attn_qkv.weight") is None:
            return self.linear(x, f"attn_{name}").reshape(len(x), n, -1).transpose(0, 1)
        y = self.linear(x, "attn_qkv").reshape(len(x), sum(counts), -1).transpose(0, 1)
        return y.split(counts)["qkv".index(name)]

    def count(self, key):
        value = self.file.get(f"attention.{key}")
        return int(value[int(self.prefix.split(".")[1])] if hasattr(value, "__len__") else value)

    def swiglu(self, x, act=silu):
        if self.get("ffn_gate.weight") is None:
            gate, up = self.linear(x, "ffn_up").chunk(2, dim=-1)
        else:
            gate, up = self.linear(x, "ffn_gate"), self.linear(x, "ffn_up")
        return self.linear(act(gate) * up, "ffn_down")

    def experts(self, x, scores, act, used, kind="exps", each=1):
        """Each row through its best experts, whose shares are made to sum to 1; `each` of them have one matrix."""
        shares, chosen = scores.topk(used)
        shares = shares / shares.sum(-1, keepdim=True)
        gate, up, down = (self.get(f"ffn_{name}_{kind}.weight") for name in ("gate", "up", "down"))
        chosen = chosen // each
        rows = [
            sum(s * (down[e] @ (act(gate[e] @ row) * (up[e] @ row))) for s, e in zip(shares[i], chosen[i], strict=True))
            for i, row in enumerate(x)
        ]
        return torch.stack(rows)


def turned(x, base, adjacent, relative=1.0, magnitude=1.0):
    """Rotary positions of (heads, rows, columns), as products of complex numbers; other frequencies with `relative`."""
    width = x.shape[-1]
    pairs = x.unflatten(-1, (-1, 2)) if adjacent else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    frequencies = relative * base ** (-torch.arange(0, width, 2).double() / width)
    angles = torch.outer(torch.arange(x.shape[1]).double(), frequencies)
    turns = torch.polar(torch.full_like(angles, magnitude), angles)
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turns)
    return (out if adjacent else out.transpose(-1, -2)).flatten(-2)


def slopes(heads, most=8.0):
    """ALiBi slopes; heads beyond a power of two are interpolated."""
    whole = 1 << (heads.bit_length() - 1)
    exponents = [most * (h + 1) / whole for h in range(whole)] + [
        most * (h + 0.5) / whole for h in range(heads - whole)
    ]
    return torch.tensor([2.0**-e for e in exponents]).double()[:, None, None]


def mixed(q, k, v, *, window=0, fall=0.0, scale=None, cap=0.0):
    """Causal attention as (rows, heads * columns), with grouped heads of k and v."""
    k, v = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (k, v))
    far = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    scores = q @ k.transpose(1, 2) * (scale or q.shape[-1] ** -0.5) - fall * far
    scores = capped(scores, cap)
    hidden = (far < 0) | (far >= window) if window else far < 0
    return (softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v).transpose(0, 1).flatten(1)


def capped(x, cap):
    """X within a bound, 0 for none."""
    return cap * torch.tanh(x / cap) if cap else x


def attention(b, x, *, turn=None, norms=False, late=False, fall=0.0, scale=None, window=0, cap=0.0):
    """Attention of one layer; `turn` is the base of its rope and whether pairs are adjacent."""
    q, k, v = (b.heads(x, name, b.count("head_count" if name == "q" else "head_count_kv")) for name in "qkv")
    if norms and not late:
        q, k = b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm")
    if turn is not None:
        q, k = turned(q, *turn), turned(k, *turn)
    if late:
        q, k = b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm")
    return b.linear(mixed(q, k, v, fall=fall, scale=scale, window=window, cap=cap), "attn_output")


def latent(b, x, base):
    """K and V of all heads from one row; the part that turns is shared by all."""
    heads, n_rot = b.count("head_count"), int(b.file.get("rope.dimension_count"))
    rank, v_dim = int(b.file.get("attention.kv_lora_rank")), int(b.file.get("attention.value_length"))
    kv = b.linear(x, "attn_kv_a_mqa")
    both = (b.norm(kv[:, :rank], "attn_kv_a_norm") @ b.get("attn_kv_b.weight").T).reshape(len(x), heads, -1)
    k, v = both.transpose(0, 1)[..., :-v_dim], both.transpose(0, 1)[..., -v_dim:]
    q = b.linear(x, "attn_q").reshape(len(x), heads, -1).transpose(0, 1)
    q = torch.cat([q[..., :-n_rot], turned(q[..., -n_rot:].contiguous(), base, True)], -1)
    shared = turned(kv[None, :, rank:].contiguous(), base, True).expand(heads, -1, -1)
    return b.linear(mixed(q, torch.cat([k, shared], -1), v), "attn_output")


def yarn(base, n, file):
    """Frequencies of YaRN relative to those of the base, and what cosines are multiplied by."""
    factor, length = float(file.get("rope.scaling.factor")), float(file.get("rope.scaling.original_context_length"))
    ends = [
        n * math.log(length / (beta * 2 * math.pi)) / (2 * math.log(base))
        for beta in (float(file.get("rope.scaling.yarn_beta_fast")), 1.0)
    ]
    low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), n - 1)
    ramp = ((torch.arange(n // 2).double() - low) / max(high - low, 0.001)).clamp(0, 1)
    return ramp / factor + 1 - ramp, 1 + 0.1 * math.log(factor)


def grok(b, x, h):
    """A layer of Grok: both parts have a norm after them, too."""
    file, n = b.file, int(b.file.get("rope.dimension_count"))
    turn = [float(file.get("rope.freq_base")), False]
    turn += yarn(turn[0], n, file) if file.get("rope.scaling.type") == "yarn" else []
    scale, cap = float(file.get("attention.output_scale")), float(file.get("attn_logit_softcapping"))
    x = x + b.norm(attention(b, h, turn=turn, scale=scale, cap=cap), "attn_output_norm")
    h = b.norm(x, "ffn_norm")
    scores = softmax(capped(b.linear(h, "ffn_gate_inp"), float(file.get("router_logit_softcapping", 0.0))), -1)
    act = partial(gelu, approximate="tanh")
    y = b.experts(h, scores, act, 2)
    if b.get("ffn_up.weight") is None:
        return x + b.norm(y, "layer_output_norm")
    return x + b.norm((y + b.swiglu(h, act)) / math.sqrt(2), "post_ffw_norm")


def plamo2(b, h):
    """A layer of PLaMo 2 with a state: each head of it fades by one number."""
    inner, n, heads, kernel = (
        int(b.file.get(f"ssm.{x}")) for x in ("inner_size", "state_size", "time_step_rank", "conv_kernel")
    )
    z, x = b.linear(h, "ssm_in").reshape(len(h), heads, 2, -1).unbind(2)
    before = torch.cat([x.new_zeros(kernel - 1, inner), x.flatten(1)])
    x = silu(sum(before[i : len(h) + i] * b.get("ssm_conv1d.weight")[:, i] for i in range(kernel)))
    keys, queries, dt = b.linear(x, "ssm_x").split([n, n, b.get("ssm_dt.weight").shape[1]], -1)
    keys, queries, dt = b.norm(keys, "ssm_b_norm"), b.norm(queries, "ssm_c_norm"), b.norm(dt, "ssm_dt_norm")
    steps, x = softplus(b.linear(dt, "ssm_dt")), x.unflatten(-1, (heads, -1))
    state, rows = x.new_zeros(heads, x.shape[-1], n), []
    for t, step in enumerate(steps):
        fade = torch.exp(step * b.get("ssm_a"))[:, None, None]
        state = fade * state + (step[:, None] * x[t])[..., None] * keys[t]
        rows.append(state @ queries[t] + b.get("ssm_d")[:, None] * x[t])
    return b.linear((torch.stack(rows) * silu(z)).flatten(1), "ssm_out")


def layer(file, i, x):
    """X after layer i, as the architecture's paper has it."""
    b, base, name = Block(file, i), float(file.get("rope.freq_base")), file.architecture
    h = b.norm(x, "attn_norm")
    if name in ("baichuan", "refact"):
        x = x + attention(b, h, fall=slopes(b.count("head_count")))
    elif name == "jais":
        d = int(file.get("attention.key_length"))
        x = x + attention(b, h, fall=slopes(b.count("head_count")), scale=1 / d)
    elif name == "plamo":
        return x + attention(b, h, turn=(base, False)) + b.swiglu(h)
    elif name == "plamo2":
        y = attention(b, h, turn=(base, False), norms=True) if b.count("head_count") else plamo2(b, h)
        x = x + b.norm(y, "post_attention_norm")
        return x + b.norm(b.swiglu(b.norm(x, "ffn_norm")), "post_ffw_norm")
    elif name == "plamo3":
        window = int(file.get("attention.sliding_window")) if i % 8 < 7 else 0
        turn = (float(file.get("rope.freq_base_swa")) if window else base, False)
        x = x + b.norm(attention(b, h, turn=turn, norms=True, window=window), "post_attention_norm")
        return x + b.norm(b.swiglu(b.norm(x, "ffn_norm")), "post_ffw_norm")
    elif name == "bailingmoe":
        x = x + attention(b, h, turn=(base, True))
        h = b.norm(x, "ffn_norm")
        chosen = b.experts(h, softmax(b.linear(h, "ffn_gate_inp"), -1), silu, 2)
        return (
            x + chosen + b.linear(silu(b.linear(h, "ffn_gate_shexp")) * b.linear(h, "ffn_up_shexp"), "ffn_down_shexp")
        )
    elif name == "grovemoe":
        x = x + attention(b, h, turn=(base, False), norms=True)
        h = b.norm(x, "ffn_norm")
        scores, used = softmax(b.linear(h, "ffn_gate_inp"), -1), int(file.get("expert_used_count"))
        small = b.experts(h, scores, silu, used, "chexps", int(file.get("experts_per_group")))
        return x + b.experts(h, scores, silu, used) + float(file.get("expert_group_scale")) * small
    elif name == "grok":
        return grok(b, x, h)
    elif name == "openelm":
        x = x + attention(b, h, turn=(base, False), norms=True)
    elif name == "maincoder":
        x = x + attention(b, h, turn=(base, True), late=True)
    elif name == "plm":
        x = x + latent(b, h, base)
        return x + b.linear(relu(b.linear(b.norm(x, "ffn_norm"), "ffn_up")) ** 2, "ffn_down")
    elif name == "smallthinker":
        window = int(file.get("attention.sliding_window")) if i % 4 else 0
        scores = torch.sigmoid(b.linear(x, "ffn_gate_inp"))
        x = x + attention(b, h, turn=(base, False) if window else None, window=window)
        return x + b.experts(b.norm(x, "ffn_norm"), scores, relu, 2)
    elif name == "arctic":
        e = b.norm(x, "ffn_norm_exps")
        e = b.experts(e, softmax(b.linear(e, "ffn_gate_inp"), -1), silu, 2)
        x = x + attention(b, h, turn=(base, True)) + e
        return x + b.swiglu(b.norm(x - e, "ffn_norm"))
    return x + b.swiglu(b.norm(x, "ffn_norm"))


NAMES = (
    *("arctic", "bailingmoe", "grok", "grovemoe", "jais", "maincoder", "openelm", "plamo", "plamo2", "plamo3", "plm"),
    *("refact", "smallthinker"),
)


def has(file):
    """True if transformers has no class for the model."""
    return file.architecture in NAMES or (file.architecture == "baichuan" and int(file.get("block_count")) == 40)


def logits(file, ids):
    top = Block(file)
    x = top.get("token_embd.weight")[ids] * float(file.get("embedding_scale", 1.0))
    for i in range(int(file.get("block_count"))):
        x = layer(file, i, x)
    head = "output" if "output.weight" in file.tensors else "token_embd"
    y = top.linear(top.norm(x, "output_norm"), head) * float(file.get("logit_scale", 1.0))
    return capped(y, float(file.get("final_logit_softcapping", 0.0))).numpy()
