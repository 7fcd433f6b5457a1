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


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps) * weight + bias


def hrm_text(file, x):
    stack, high, low = (int(file.get(f"hrm.{name}")) for name in ("layers_per_stack", "h_cycles", "l_cycles"))
    base, top = float(file.get("rope.freq_base")), Part(file)

    def run(x, first):
        for i in range(first, first + stack):
            b = Part(file, i)
            h = b.norm(x)
            q, k, v = (b.heads(h, name) for name in "qkv")
            a = attend(rotated(q, base), rotated(k, base), v) * sigmoid(b.linear(h, "attn_gate"))
            x = x + b.linear(a, "attn_output")
            x = x + b.swiglu(b.norm(x))
        return top.norm(x)

    x = x * float(file.get("embedding_scale"))
    z = top.get("hrm_z_l_init")
    for _ in range(high):
        for _ in range(low):
            z = run(x + z, 0)
        x = run(x + z, stack)
    return x


def chameleon(file, x):
    base = float(file.get("rope.freq_base"))
    for i in range(int(file.get("block_count"))):
        b, after = Part(file, i), bool(file.get("swin_norm", False))

        def attention(h, b=b):
            q, k, v = (b.heads(h, name) for name in "qkv")
            q, k = (
                layer_norm(y, *(b.get(f"attn_{name}_norm.{kind}")[:, None] for kind in ("weight", "bias")), 1e-5)
                for name, y in (("q", q), ("k", k))
            )
            return b.linear(attend(rotated(q, base, adjacent=True), rotated(k, base, adjacent=True), v), "attn_output")

        for name, part in (("attn_norm", attention), ("ffn_norm", b.swiglu)):
            x = x + (b.norm(part(x), name) if after else part(b.norm(x, name)))
    return Part(file).norm(x, "output_norm")


def delta_net(b, x):
    """Kimi delta attention with a decay between the lower bound and 0, row by row."""
    heads = b.key("attention.head_count")
    kernel = int(b.file.get("ssm.conv_kernel"))

    def conv(name):
        y, w = b.linear(x, f"attn_{name}"), b.get(f"ssm_conv1d_{name}.weight").reshape(-1, kernel)
        y = np.concatenate([np.zeros((kernel - 1, y.shape[1])), y])
        return silu(sum(y[i : i + len(x)] * w[:, i] for i in range(kernel))).reshape(len(x), heads, -1)

    def normed(y):
        return y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6)

    q, k, v = conv("q"), conv("k"), conv("v")
    q, k = normed(q) * q.shape[-1] ** -0.5, normed(k)
    fade = (b.linear(b.linear(x, "ssm_f_a"), "ssm_f_b") + b.get("ssm_dt.bias")).reshape(k.shape)
    keep = np.exp(float(b.file.get("kda.gate_lower_bound")) * sigmoid(-b.get("ssm_a")[:, None] * fade))
    beta, state, rows = sigmoid(b.linear(x, "ssm_beta")), np.zeros((heads, k.shape[-1], v.shape[-1])), []
    for t in range(len(x)):
        state = keep[t][..., None] * state
        wrong = v[t] - np.einsum("hkv,hk->hv", state, k[t])
        state = state + beta[t][:, None, None] * k[t][..., None] * wrong[:, None]
        rows.append(np.einsum("hkv,hk->hv", state, q[t]))
    gate = sigmoid(b.linear(b.linear(x, "ssm_g_a"), "ssm_g_b"))
    return b.linear(b.norm(np.stack(rows), "ssm_norm").reshape(len(x), -1) * gate, "attn_output")


def pooled_attention(b, x):
    """Absorbed attention over one latent row, to the pools that an index selects and the incomplete last one."""
    heads, rank = b.key("attention.head_count"), b.key("attention.kv_lora_rank")
    low = b.norm(b.linear(x, "attn_q_a"), "attn_q_a_norm")
    q = b.linear(low, "attn_q_b").reshape(len(x), heads, -1)
    q = np.einsum("thd,hrd->htr", q, b.get("attn_k_b.weight"))
    c = b.norm(b.linear(x, "attn_kv_a_mqa")[:, :rank], "attn_kv_a_norm")
    n, pool = b.key("attention.indexer.head_count"), b.key("attention.indexer.kpool")
    eps = b.key("attention.layer_norm_epsilon")
    keys = layer_norm(b.linear(x, "indexer.attn_k"), *(b.get(f"indexer.k_norm.{y}") for y in ("weight", "bias")), eps)
    gates, seen = b.linear(x, "indexer_compressor_gate"), np.zeros((len(x), len(x)), bool)
    queries = b.linear(low, "indexer.attn_q_b").reshape(len(x), n, -1)
    shares = b.linear(x, "indexer.proj") * (n * queries.shape[-1]) ** -0.5
    pooled = []
    for first in range(0, len(x) - pool + 1, pool):
        weights = softmax((gates[first : first + pool] + b.get("indexer_compressor_ape.weight")).T).T
        pooled.append((weights * keys[first : first + pool]).sum(0))
    for t in range(len(x)):
        whole = (t + 1) // pool
        seen[t, whole * pool : t + 1] = True
        scores = [shares[t] @ np.maximum(queries[t] @ pooled[i], 0) for i in range(whole)]
        for i in np.argsort(-np.array(scores), kind="stable")[: b.key("attention.indexer.top_k") // pool]:
            seen[t, i * pool : (i + 1) * pool] = True
    scores = np.where(seen, q @ c.T * b.key("attention.key_length_mla") ** -0.5, -np.inf)
    out = np.einsum("htr,hvr->thv", softmax(scores) @ c, b.get("attn_v_b.weight"))
    return b.linear(out.reshape(len(x), -1), "attn_output")


def clamped(b, x, end, limit):
    gate, up = b.linear(x, f"ffn_gate{end}"), b.linear(x, f"ffn_up{end}")
    return b.linear(silu(np.minimum(gate, limit)) * np.clip(up, -limit, limit), f"ffn_down{end}")


def routed(b, x):
    """Sigmoid scores, chosen with a bias, normalized and scaled."""
    scores = sigmoid(b.linear(x, "ffn_gate_inp"))
    chosen = best(scores + b.get("exp_probs_b.bias") + 9, b.key("expert_used_count")) > 0
    shares = np.where(chosen, scores, 0)
    return shares / shares.sum(1, keepdims=True) * b.key("expert_weights_scale")


def glm5next(file, x):
    n, iterations = (int(file.get(f"hyper_connection.{y}")) for y in ("count", "sinkhorn_iterations"))
    eps = float(file.get("hyper_connection.epsilon"))
    streams = np.stack([x] * n, axis=1)

    def connected(b, streams, name, part):
        scale, base = b.get(f"hc_{name}_scale.weight"), b.get(f"hc_{name}_base.weight")
        logits = b.linear(b.norm(streams.reshape(len(streams), -1)), f"hc_{name}_fn")
        into = sigmoid(logits[:, :n] * scale[0] + base[:n]) + eps
        out = 2 * sigmoid(logits[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        among = softmax((logits[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)) + eps
        for i in range(2 * iterations - 1):
            among = among / (among.sum(1 if i % 2 == 0 else 2, keepdims=True) + eps)
        y = part(b.norm((into[..., None] * streams).sum(1), f"{name}_norm"))
        return np.einsum("tij,tiw->tjw", among, streams) + out[..., None] * y[:, None]

    for i in range(int(file.get("block_count"))):
        b = Part(file, i)
        part = pooled_attention if b.key("attention.head_count_kv") else delta_net

        def network(h, b=b):
            limit, shared = (float(b.key(f"swiglu_clamp_{y}")) for y in ("exp", "shexp"))
            if b.get("ffn_gate_inp.weight") is None:
                return clamped(b, h, "", shared)
            return experts(b, h, routed(b, h), limit) + clamped(b, h, "_shexp", shared)

        streams = connected(b, streams, "attn", lambda h, b=b, part=part: part(b, h))
        streams = connected(b, streams, "ffn", network)
    return Part(file).norm(streams.mean(1), "output_norm")


def masked(file, x):
    """Dream, RND1 and LLaDA: all rows see all rows."""
    base, adjacent = float(file.get("rope.freq_base")), file.architecture == "llada"
    for i in range(int(file.get("block_count"))):
        b = Part(file, i)
        h = b.norm(x, "attn_norm")
        q, k, v = (b.heads(h, name) for name in "qkv")
        if b.get("attn_q_norm.weight") is not None:
            q, k = b.norm(q, "attn_q_norm"), b.norm(k, "attn_k_norm")
        q, k = (rotated(y, base, adjacent=adjacent) for y in (q, k))
        x = x + b.linear(attend(q, k, v, causal=False), "attn_output")
        h = b.norm(x, "ffn_norm")
        if b.get("ffn_gate_inp.weight") is None:
            x = x + b.swiglu(h)
            continue
        shares = best(softmax(b.linear(h, "ffn_gate_inp")), int(file.get("expert_used_count")))
        shares = shares / shares.sum(1, keepdims=True) if file.architecture == "rnd1" else shares
        x = x + experts(b, h, shares * float(file.get("expert_weights_scale", 1.0)))
    return Part(file).norm(x, "output_norm")


LOOPS = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), masked),
    "chameleon": chameleon,
    "glm5next": glm5next,
    "hrm_text": hrm_text,
    "maple": maple,
    "nanbeige": nanbeige,
    "spark2_5": spark2_5,
    "talkie": talkie,
}


def logits(file, ids):
    """Logits of all rows."""
    top = Part(file)
    x = LOOPS[file.architecture](file, top.get("token_embd.weight")[ids])
    return x @ top.get("output.weight" if "output.weight" in file.tensors else "token_embd.weight").T
