"""Decoders that transformers has no class for, written down in NumPy from their papers, in f64."""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def has(file):
    """True if this module computes the architecture."""
    return file.architecture in LOOPS


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Part:
    """The tensors of one layer, or of none."""

    def __init__(self, file, i=None):
        self.file, self.prefix = file, "" if i is None else f"blk.{i}."
        self.i, self.eps = i, float(file.get("attention.layer_norm_rms_epsilon"))

    def get(self, name):
        array = self.file.tensors.get(self.prefix + name)
        return None if array is None else np.asarray(array, np.float64)

    def key(self, name, default=None):
        """A number of the metadata, that of this layer if it is a list."""
        value = self.file.get(name, default)
        return value[self.i] if hasattr(value, "__len__") and not isinstance(value, str) else value

    def linear(self, x, name):
        y, scale, bias = (self.get(f"{name}.{x}") for x in ("weight", "scale", "bias"))
        y = x @ y.T
        y = y if scale is None else y * scale
        return y if bias is None else y + bias

    def norm(self, x, name=None):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return y if name is None else y * self.get(f"{name}.weight")

    def heads(self, x, name):
        """(heads, rows, columns) of q, k or v."""
        counts = [self.key("attention.head_count"), *[self.key("attention.head_count_kv")] * 2]
        which = "qkv".index(name)
        if self.get("attn_qkv.weight") is None:
            y = self.linear(x, f"attn_{name}").reshape(len(x), counts[which], -1)
        else:
            y = self.linear(x, "attn_qkv").reshape(len(x), sum(counts), -1)
            y = y[:, sum(counts[:which]) : sum(counts[: which + 1])]
        return y.swapaxes(0, 1)

    def swiglu(self, x, act=silu):
        return self.linear(act(self.linear(x, "ffn_gate")) * self.linear(x, "ffn_up"), "ffn_down")


def rotated(x, base, n_rot=0, adjacent=False, divisors=1.0):
    """Rotary positions of the first columns of (heads, rows, columns)."""
    n = n_rot or x.shape[-1]
    angles = np.outer(np.arange(x.shape[1]), base ** (-np.arange(0, n, 2) / n) / divisors)
    first, second = np.arange(n // 2) * (2 if adjacent else 1), np.arange(n // 2)
    second = first + 1 if adjacent else second + n // 2
    out, cos, sin = x.copy(), np.cos(angles), np.sin(angles)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attend(q, k, v, *, scale=0.0, window=0, causal=True):
    """(rows, heads * columns); `window` is the number of visible positions."""
    k, v = (np.repeat(x, len(q) // len(x), axis=0) for x in (k, v))
    far = np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])
    hidden = (causal & (far < 0)) | ((far >= window) if window else False)
    scores = np.where(hidden, -np.inf, q @ k.swapaxes(1, 2) * (scale or q.shape[-1] ** -0.5))
    return (softmax(scores) @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def experts(b, x, shares, limit=0.0):
    """Rows through their experts; `shares` is (rows, experts) with zeros for those that are not chosen."""
    out = np.zeros_like(x)
    for e in range(shares.shape[1]):
        gate, up, down = (b.get(f"ffn_{name}_exps.weight")[e] for name in ("gate", "up", "down"))
        g, u = x @ gate.T, x @ up.T
        if limit:
            g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
        out += shares[:, e : e + 1] * ((silu(g) * u) @ down.T)
    return out


def best(scores, used):
    """The scores of the best experts of each row, zeros elsewhere."""
    least = np.sort(scores, axis=1)[:, -used][:, None]
    return np.where(scores >= least, scores, 0)


def llama(b, x):
    base, divisors = float(b.file.get("rope.freq_base")), Part(b.file).get("rope_freqs.weight")
    turn = {"base": base, "adjacent": True, "divisors": 1.0 if divisors is None else divisors}
    h = b.norm(x, "attn_norm")
    q, k, v = (b.heads(h, name) for name in "qkv")
    x = x + b.linear(attend(rotated(q, **turn), rotated(k, **turn), v), "attn_output")
    return x + b.swiglu(b.norm(x, "ffn_norm"))


def nanbeige(file, x):
    top, loops = Part(file), int(file.get("num_loops"))
    for loop in range(loops):
        for i in range(int(file.get("block_count"))):
            x = llama(Part(file, i), x)
        if loop < loops - 1 and not file.get("skip_loop_final_norm", False):
            x = top.norm(x, "output_norm")
    return top.norm(x, "output_norm")


def talkie(file, x):
    top, base = Part(file), float(file.get("rope.freq_base"))
    e = x = top.norm(x)
    for i in range(int(file.get("block_count"))):
        b = Part(file, i)
        q, k, v = (b.heads(b.norm(x), name) for name in "qkv")
        q, k = b.norm(rotated(q, base)) * b.get("attn_q_norm.weight")[:, :, None], b.norm(rotated(k, base))
        x = x + b.linear(attend(q, k, v), "attn_output")
        x = x + b.swiglu(b.norm(x)) + b.get("layer_output_scale.weight") * e
    return top.norm(x) * float(file.get("logit_scale"))


def spark2_5(file, x):
    for i in range(int(file.get("block_count"))):
        b = Part(file, i)
        swa = b.key("attention.sliding_window_pattern")
        end = "_swa" if swa else ""
        turn = float(file.get(f"rope.freq_base{end}")), int(file.get(f"rope.dimension_count{end}"))
        h = b.norm(x, "attn_norm")
        q, k, v = (b.heads(h, name) for name in "qkv")
        a = attend(rotated(q, *turn), rotated(k, *turn), v, window=int(file.get("attention.sliding_window")) * swa)
        gate = sigmoid(b.linear(h, "attn_gate"))
        x = x + b.linear(a * np.repeat(gate, a.shape[1] // gate.shape[1], axis=1), "attn_output")
        x = x + b.swiglu(b.norm(x, "ffn_norm"), gelu)
    return Part(file).norm(x, "output_norm")


def maple(file, x):
    base, n_rot = float(file.get("rope.freq_base")), int(file.get("rope.dimension_count"))
    for i in range(int(file.get("block_count"))):
        b = Part(file, i)
        h = b.norm(x, "attn_norm")
        q, k, v = (b.heads(h, name) for name in "qkv")
        q, k, window = b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm"), 0
        if b.key("attention.sliding_window_pattern"):
            q, k = rotated(q, base, n_rot), rotated(k, base, n_rot)
            window = int(file.get("attention.sliding_window")) + 1
        x = x + b.linear(attend(q, k, v, window=window), "attn_output")
        h = b.norm(x, "ffn_norm")
        shares = best(softmax(b.linear(h, "ffn_gate_inp")), int(file.get("expert_used_count")))
        x = x + experts(b, h, shares / shares.sum(1, keepdims=True), float(b.key("swiglu_clamp_exp")))
    return Part(file).norm(x, "output_norm")


LOOPS = {"maple": maple, "nanbeige": nanbeige, "spark2_5": spark2_5, "talkie": talkie}


def logits(file, ids):
    """Logits of all rows."""
    top = Part(file)
    x = LOOPS[file.architecture](file, top.get("token_embd.weight")[ids])
    return x @ top.get("output.weight" if "output.weight" in file.tensors else "token_embd.weight").T
