"""SAM with the convolutions of DeepSeek-OCR, and Qwen 2 with queries, in NumPy (float64), as in numpy_towers.py."""

from __future__ import annotations

import numpy as np

from tests.cases.numpy_towers import gelu_erf, layer_norm, linear, rms_norm, silu


def softmax(scores):
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def shrunk(table, n):
    """The first axis in n steps: bicubic (a = -0.5), over as many rows as n is smaller."""
    scale, out = len(table) / n, []
    for i in range(n):
        apart = np.abs(np.arange(len(table)) + 0.5 - (i + 0.5) * scale) / scale
        near, far = 1.5 * apart**3 - 2.5 * apart**2 + 1, -0.5 * (apart**3 - 5 * apart**2 + 8 * apart - 4)
        weights = np.where(apart < 1, near, np.where(apart < 2, far, 0))
        out.append(np.tensordot(weights / weights.sum(), table, 1))
    return np.array(out)


def between(table, n):
    """The rows of a table in n steps: linear, with half-pixel centers."""
    at = np.clip((np.arange(n) + 0.5) * len(table) / n - 0.5, 0, len(table) - 1)
    return np.stack([np.interp(at, np.arange(len(table)), column) for column in table.T], axis=1)


def window_attention(x, own, heads):
    """All lines and columns of x see each other; scores also depend on the distances of lines and of columns."""
    side, width = x.shape[0], x.shape[-1]
    q, k, v = (one.reshape(side**2, heads, -1) for one in np.split(linear(x, own, "attn.qkv"), 3, axis=-1))
    distances = np.arange(side)[:, None] - np.arange(side) + side - 1
    by_line, by_column = (between(own[f"attn.pos_{one}.weight"], 2 * side - 1)[distances] for one in "hw")
    square = q.reshape(side, side, heads, -1)
    lines, columns = np.einsum("yxhc,ykc->hyxk", square, by_line), np.einsum("yxhc,xkc->hyxk", square, by_column)
    scores = np.einsum("qhc,khc->hqk", q, k) / q.shape[-1] ** 0.5
    scores = scores.reshape(heads, side, side, side, side) + lines[..., None] + columns[..., None, :]
    y = np.einsum("hqk,khc->qhc", softmax(scores.reshape(heads, side**2, side**2)), v)
    return linear(y.reshape(side, side, width), own, "attn.out")


def windows_attention(x, own, heads, window):
    side = -(-len(x) // window) * window
    padded = np.zeros((side, side, x.shape[-1]))
    padded[: len(x), : len(x)] = x
    for y in range(0, side, window):
        for z in range(0, side, window):
            part = slice(y, y + window), slice(z, z + window)
            padded[part] = window_attention(padded[part], own, heads)
    return padded[: len(x), : len(x)]


def convolved(x, weights, name, stride):
    x, side = np.pad(x, ((1, 1), (1, 1), (0, 0))), len(x)
    taps = weights[f"{name}.weight"]
    return sum(x[i : i + side : stride, j : j + side : stride] @ taps[:, :, i, j].T for i in range(3) for j in range(3))


def sam_rows(weights, side, patches, heads=2, window=6, eps=1e-6):
    weights = {name.removeprefix("v.sam."): one for name, one in weights.items() if name.startswith("v.sam.")}
    table = weights["pos_embd.weight"][0]
    if len(table) != side:
        table = shrunk(shrunk(table, side).swapaxes(0, 1), side).swapaxes(0, 1)
    x = linear(patches, weights, "patch_embd").reshape(side, side, -1) + table
    for i in range(3):
        own = {name.removeprefix(f"blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "pre_ln", eps)
        x = x + (window_attention(h, own, heads) if i == 2 else windows_attention(h, own, heads, window))
        x = x + linear(gelu_erf(linear(layer_norm(x, own, "post_ln", eps), own, "mlp.lin1")), own, "mlp.lin2")
    x = layer_norm(linear(x, weights, "neck.0"), weights, "neck.1", eps)
    x = layer_norm(convolved(x, weights, "neck.2", 1), weights, "neck.3", eps)
    return convolved(convolved(x, weights, "net_2", 2), weights, "net_3", 2)


def neox_rope(x, base):
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[-2]), base ** (-np.arange(half) / half))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def deepseek_ocr_2(weights, grid, patches, heads=2, eps=1e-6):
    x = sam_rows(weights, grid[1], patches).reshape(-1, 32)
    n = len(x)
    x = np.concatenate([x, weights[f"v.resample_query_{1024 if grid[1] == 16 else 768}.weight"]])
    row = np.arange(2 * n)
    unseen = (row >= n) & (row > row[:, None])  # rows of SAM, and queries before
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = rms_norm(x, eps, own["ln1.weight"])
        q = neox_rope(linear(h, own, "attn_q").reshape(2 * n, heads, -1).swapaxes(0, 1), 1e6)
        k, v = linear(h, own, "attn_k"), linear(h, own, "attn_v")  # of one head
        scores = q @ neox_rope(k, 1e6).T / q.shape[-1] ** 0.5
        a = softmax(np.where(unseen, -np.inf, scores)) @ v
        x = x + linear(a.swapaxes(0, 1).reshape(2 * n, -1), own, "attn_out")
        h = rms_norm(x, eps, own["ln2.weight"])
        x = x + linear(silu(linear(h, own, "ffn_gate")) * linear(h, own, "ffn_up"), own, "ffn_down")
    y = linear(rms_norm(x[n:], eps, weights["v.post_ln.weight"]), weights, "mm.model.fc")
    return np.concatenate([y, weights["v.view_seperator"]])
