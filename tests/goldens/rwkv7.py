"""RWKV-7 as its paper writes it, in f64 and one token at a time: transformers has no such model.

ARWKV-7 and QRWKV-6 have RMS norms, and a gated feed-forward network that does not look back. RWKV-6 is written down
in the same way.
"""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, weight, bias, eps):
    return (x - x.mean()) / np.sqrt(x.var() + eps) * weight + bias


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean() + eps) * weight


def distilled(file, ids):
    """Logits of every position of an ARWKV-7 or QRWKV-6 model."""
    t = {name: np.asarray(array, np.float64) for name, array in file.tensors.items()}
    n, head, eps = (file.get(k) for k in ("embedding_length", "wkv.head_size", "attention.layer_norm_rms_epsilon"))
    n, head, layers = int(n), int(head), int(file.get("block_count"))
    before, states, rows = np.zeros((layers, n)), np.zeros((layers, n // head, head, head)), []
    for token in ids:
        x, v_first = t["token_embd.weight"][token], None
        for i in range(layers):
            w = {k[len(f"blk.{i}.") :].removesuffix(".weight"): a for k, a in t.items() if k.startswith(f"blk.{i}.")}
            h = rms_norm(x, w["attn_norm"], eps)
            if file.architecture == "rwkv6qwen2":
                y = gated_time_mix(w, h, before[i] - h, states[i])
            else:
                mixed = [h + (before[i] - h) * m for m in w["time_mix_lerp_fused"].reshape(-1, n)]
                y, v_first = time_mix(w, mixed, states[i], head, v_first)
            before[i] = h
            x = x + y
            h = rms_norm(x, w["ffn_norm"], eps)
            gate = w["ffn_gate"] @ h
            x = x + w["ffn_down"] @ (gate * sigmoid(gate) * (w["ffn_up"] @ h))
        rows.append(t["output.weight"] @ rms_norm(x, t["output_norm.weight"], eps))
    return np.array(rows, np.float32)


def sixth(file, ids):
    """Logits of every position of an RWKV-6 model."""
    t = {name: np.asarray(array, np.float64) for name, array in file.tensors.items()}
    n, head, eps = (file.get(k) for k in ("embedding_length", "wkv.head_size", "attention.layer_norm_epsilon"))
    n, head, layers, halved = int(n), int(head), int(file.get("block_count")), int(file.get("rescale_every_n_layers"))
    before = np.zeros((layers, 2, n))
    states = np.zeros((layers, n // head, head, head))  # [head, key, value]
    rows = []
    for token in ids:
        x = layer_norm(t["token_embd.weight"][token], t["token_embd_norm.weight"], t["token_embd_norm.bias"], eps)
        for i in range(layers):
            w = {k[len(f"blk.{i}.") :].removesuffix(".weight"): a for k, a in t.items() if k.startswith(f"blk.{i}.")}
            h = layer_norm(x, w["attn_norm"], w["attn_norm.bias"], eps)
            x = x + sixth_time_mix(w, h, before[i, 0] - h, states[i])
            before[i, 0] = h
            h = layer_norm(x, w["attn_norm_2"], w["attn_norm_2.bias"], eps)
            back = before[i, 1] - h
            before[i, 1] = h
            k, r = (h + back * w[f"channel_mix_lerp_{name}"].reshape(n) for name in "kr")
            y = w["channel_mix_value"] @ np.maximum(w["channel_mix_key"] @ k, 0) ** 2
            x = x + sigmoid(w["channel_mix_receptance"] @ r) * y
            x = x / 2 if (i + 1) % halved == 0 else x
        x = layer_norm(x, t["output_norm.weight"], t["output_norm.bias"], eps)
        rows.append(t["output.weight"] @ x)
    return np.array(rows, np.float32)


def sixth_time_mix(w, h, back, states):
    """One token through the heads of a layer of RWKV-6, whose states it changes."""
    m = {name.removeprefix("time_mix_"): array for name, array in w.items()}
    low = np.tanh(m["w1"] @ (h + back * m["lerp_x"].reshape(-1))).reshape(5, -1)
    fixed = m["lerp_fused"].reshape(5, -1)
    xw, xk, xv, xr, xg = (h + back * (fixed[j] + m["w2"][j] @ low[j]) for j in range(5))
    r, k, v, gate = m["receptance"] @ xr, m["key"] @ xk, m["value"] @ xv, m["gate"] @ xg
    decay = np.exp(-np.exp(m["decay"] + m["decay_w2"] @ np.tanh(m["decay_w1"] @ xw)))
    y, head = np.empty_like(v), states.shape[-1]
    for j, state in enumerate(states):
        s = slice(j * head, (j + 1) * head)
        new = np.outer(k[s], v[s])
        out = r[s] @ (state + m["first"][j][:, None] * new)
        state[:] = decay[s][:, None] * state + new
        y[s] = (out - out.mean()) / np.sqrt(out.var() + 64e-5) * m["ln"][s] + m["ln.bias"][s]
    return m["output"] @ (y * gate * sigmoid(gate))


def gated_time_mix(w, h, back, states):
    """One token through the heads of a layer of QRWKV-6: gated linear attention, keys shared as in Qwen 2."""
    m = {name.removeprefix("time_mix_"): array for name, array in w.items()}
    low = np.tanh(m["w1"] @ (h + back * m["lerp_x"].reshape(-1))).reshape(5, -1)
    fixed = m["lerp_fused"].reshape(5, -1)
    xw, xk, xv, xr, xg = (h + back * (fixed[j] + m["w2"][j] @ low[j]) for j in range(5))
    r = m["receptance"] @ xr + m["receptance.bias"]
    k, v = m["key"] @ xk + m["key.bias"], m["value"] @ xv + m["value.bias"]
    decay = np.exp(-np.exp(m["decay"] + m["decay_w2"] @ np.tanh(m["decay_w1"] @ xw)))
    y, head = np.empty_like(r), states.shape[-1]
    shared = len(r) // len(k)
    for j, state in enumerate(states):
        s, of = slice(j * head, (j + 1) * head), slice(j // shared * head, (j // shared + 1) * head)
        state[:] = decay[s][:, None] * state + np.outer(k[of] * (1 - decay[s]), v[of])
        y[s] = r[s] @ state / np.sqrt(head)
    return m["output"] @ (y * sigmoid(m["gate"] @ xg))


def logits(file, ids):
    """Logits of every position."""
    if file.architecture in ("arwkv7", "rwkv6qwen2"):
        return distilled(file, ids)
    if file.architecture == "rwkv6":
        return sixth(file, ids)
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
    xr, xw, xk, xv, xa = mixed[:5]
    m = {name.removeprefix("time_mix_"): array for name, array in w.items()}
    r, k, v = m["receptance"] @ xr, m["key"] @ xk, m["value"] @ xv
    decay = np.exp(-np.exp(-0.5) * sigmoid(m["w0"] + m["w2"] @ np.tanh(m["w1"] @ xw)))
    if v_first is None:
        v_first = v
    else:
        v = v + (v_first - v) * sigmoid(m["v0"] + m["v2"] @ (m["v1"] @ xv))
    a = sigmoid(m["a0"] + m["a2"] @ (m["a1"] @ xa))
    g = m["g2"] @ sigmoid(m["g1"] @ mixed[5]) if "g1" in m else 1.0
    removal, k = k * m["k_k"], k * (1 + (a - 1) * m["k_a"])
    y = np.empty_like(v)
    for h, state in enumerate(states):
        s = slice(h * head, (h + 1) * head)
        kappa = removal[s] / np.linalg.norm(removal[s])
        transition = np.diag(decay[s]) - np.outer(kappa, a[s] * kappa)
        state[:] = state @ transition + np.outer(v[s], k[s])
        out = state @ r[s]
        if "ln" in m:
            out = (out - out.mean()) / np.sqrt(out.var() + 64e-5) * m["ln"][s] + m["ln.bias"][s]
        y[s] = out + (r[s] * k[s] * m["r_k"].reshape(-1)[s]).sum() * v[s]
    return m["output"] @ (y * g), v_first
