"""RWKV-7 as its paper writes it, in f64 and one token at a time: transformers has no such model."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, weight, bias, eps):
    return (x - x.mean()) / np.sqrt(x.var() + eps) * weight + bias


def logits(file, ids):
    """Logits of every position."""
    t = {name: np.asarray(array, np.float64) for name, array in file.tensors.items()}
    n, head, eps = (file.get(k) for k in ("embedding_length", "wkv.head_size", "attention.layer_norm_epsilon"))
    n, head, layers = int(n), int(head), int(file.get("block_count"))
    before = np.zeros((layers, 2, n))
    states = np.zeros((layers, n // head, head, head))  # [head, value, key]
    rows = []
    for token in ids:
        x = layer_norm(t["token_embd.weight"][token], t["token_embd_norm.weight"], t["token_embd_norm.bias"], eps)
        v_first = None
        for i in range(layers):
            w = {k[len(f"blk.{i}.") :].removesuffix(".weight"): a for k, a in t.items() if k.startswith(f"blk.{i}.")}
            h = layer_norm(x, w["attn_norm"], w["attn_norm.bias"], eps)
            mixed = [h + (before[i, 0] - h) * m for m in w["time_mix_lerp_fused"].reshape(6, n)]
            before[i, 0] = h
            y, v_first = time_mix(w, mixed, states[i], head, v_first)
            x = x + y
            h = layer_norm(x, w["attn_norm_2"], w["attn_norm_2.bias"], eps)
            k = h + (before[i, 1] - h) * w["channel_mix_lerp_k"].reshape(n)
            before[i, 1] = h
            x = x + w["channel_mix_value"] @ np.maximum(w["channel_mix_key"] @ k, 0) ** 2
        x = layer_norm(x, t["output_norm.weight"], t["output_norm.bias"], eps)
        rows.append(t["output.weight"] @ x)
    return np.array(rows, np.float32)


def time_mix(w, mixed, states, head, v_first):
    """One token through the heads of a layer, whose states it changes."""
    xr, xw, xk, xv, xa, xg = mixed
    m = {name.removeprefix("time_mix_"): array for name, array in w.items()}
    r, k, v = m["receptance"] @ xr, m["key"] @ xk, m["value"] @ xv
    decay = np.exp(-np.exp(-0.5) * sigmoid(m["w0"] + m["w2"] @ np.tanh(m["w1"] @ xw)))
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * sigmoid(m["v0"] + m["v2"] @ (m["v1"] @ xv))
    a = sigmoid(m["a0"] + m["a2"] @ (m["a1"] @ xa))
    g = m["g2"] @ sigmoid(m["g1"] @ xg)
    removal, k = k * m["k_k"], k * (1 + (a - 1) * m["k_a"])
    y = np.empty_like(v)
    for h, state in enumerate(states):
        s = slice(h * head, (h + 1) * head)
        kappa = removal[s] / np.linalg.norm(removal[s])
        transition = np.diag(decay[s]) - np.outer(kappa, a[s] * kappa)
        state[:] = state @ transition + np.outer(v[s], k[s])
        out = state @ r[s]
        out = (out - out.mean()) / np.sqrt(out.var() + 64e-5) * m["ln"][s] + m["ln.bias"][s]
        y[s] = out + (r[s] * k[s] * m["r_k"].reshape(-1)[s]).sum() * v[s]
    return m["output"] @ (y * g), v_first
