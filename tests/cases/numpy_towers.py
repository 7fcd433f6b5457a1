"""Rows of encoders in NumPy (float64), written from published formulas and independent of woolly's plans.

Each function takes the tensors of a tiny tower, and a grid with its patches in raster order, or samples.
"""

from __future__ import annotations

import math

import numpy as np


def layer_norm(x, weights, name, eps=1e-5):
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(x, eps, weight=1.0):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def linear(x, weights, name):
    matrix = weights[f"{name}.weight"]
    return x @ matrix.reshape(len(matrix), -1).T + weights.get(f"{name}.bias", 0.0)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_erf(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))


def attention(q, k, v):
    """Heads first: [heads, rows, columns]."""
    scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True) @ v


def qwen_rope(x, lines, columns):
    """Turn pairs (j, j + half): the first half of the pairs by the line, the others by the column."""
    half, quarter = x.shape[-1] // 2, x.shape[-1] // 4
    frequencies = 10000.0 ** (-np.arange(quarter) / quarter)
    angles = np.concatenate([np.outer(lines, frequencies), np.outer(columns, frequencies)], axis=1)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def gemma4_12b(weights, grid, patches):
    _, height, width = grid
    x = layer_norm(patches, weights, "v.patch_norm.1")
    x = layer_norm(linear(x, weights, "v.patch_embd"), weights, "v.patch_norm.2")
    by_column, by_line = weights["v.position_embd.weight"]
    x = x.reshape(height, width, -1) + by_column[None, :width] + by_line[:height, None]
    x = layer_norm(x.reshape(height * width, -1), weights, "v.patch_norm.3")
    return linear(rms_norm(x, 1e-6), weights, "mm.input_projection")


def glm_ocr(weights, grid, patches, heads=2, eps=1e-6):
    _, height, width = grid
    n = height * width
    frames = (weights[f"v.patch_embd.weight{one}"].reshape(32, -1) for one in ("", ".1"))
    x = sum(patches @ one.T for one in frames) + weights["v.patch_embd.bias"]
    lines, columns = np.divmod(np.arange(n), width)
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = rms_norm(x, eps, own["ln1.weight"])
        q, k, v = (linear(h, own, f"attn_{one}").reshape(n, heads, -1).swapaxes(0, 1) for one in "qkv")
        q = qwen_rope(rms_norm(q, eps, own["attn_q_norm.weight"]), lines, columns)
        k = qwen_rope(rms_norm(k, eps, own["attn_k_norm.weight"]), lines, columns)
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        h = rms_norm(x, eps, own["ln2.weight"])
        x = x + linear(silu(linear(h, own, "ffn_gate")) * linear(h, own, "ffn_up"), own, "ffn_down")
    x = rms_norm(x, eps, weights["v.post_ln.weight"])
    # Rows of 2 x 2 patches, in the order of a filter: channel, line, column.
    x = x.reshape(height // 2, 2, width // 2, 2, -1).transpose(0, 2, 4, 1, 3).reshape(n // 4, -1)
    y = linear(linear(x, weights, "mm.patch_merger"), weights, "mm.model.fc")
    y = gelu_erf(layer_norm(y, weights, "mm.post_norm"))
    return linear(silu(linear(y, weights, "mm.gate")) * linear(y, weights, "mm.up"), weights, "mm.down")


def exaone45(weights, grid, patches, heads=4, kv_heads=2, eps=1e-6):
    _, height, width = grid
    n = height * width
    frames = (weights[f"v.patch_embd.weight{one}"].reshape(32, -1) for one in ("", ".1"))
    x = sum(patches @ one.T for one in frames)
    lines, columns = np.divmod(np.arange(n), width)
    windows = lines // 4 * width + columns // 4
    for i in range(3):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = linear(rms_norm(x, eps, own["ln1.weight"]), own, "attn_qkv")
        q, k, v = (one.reshape(n, -1, 8).swapaxes(0, 1) for one in np.split(h, [32, 48], axis=1))
        q, k, v = (
            qwen_rope(q, lines, columns),
            *(np.repeat(one, heads // kv_heads, axis=0) for one in (qwen_rope(k, lines, columns), v)),
        )
        y = np.zeros_like(q)
        for own_rows in [np.arange(n)] if i % 2 else [np.flatnonzero(windows == one) for one in set(windows)]:
            y[:, own_rows] = attention(q[:, own_rows], k[:, own_rows], v[:, own_rows])
        x = x + linear(y.swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        h = rms_norm(x, eps, own["ln2.weight"])
        x = x + linear(silu(linear(h, own, "ffn_gate")) * linear(h, own, "ffn_up"), own, "ffn_down")
    x = rms_norm(x, eps, weights["v.post_ln.weight"])
    return linear(gelu_erf(linear(blocks(x, height, width), weights, "mm.0")), weights, "mm.2")


def minimax_m3(weights, grid, patches, heads=2):
    _, height, width = grid
    n = height * width
    frames = (weights[f"v.patch_embd.weight{one}"].reshape(32, -1) for one in ("", ".1"))
    x = layer_norm(sum(patches @ one.T for one in frames), weights, "v.pre_ln")
    lines, columns = np.divmod(np.arange(n), width)
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "ln1")
        q, k, v = (linear(h, own, f"attn_{one}").reshape(n, heads, -1).swapaxes(0, 1) for one in "qkv")
        q, k = (  # by the time, which is 0, the line, the column, and 4 elements that do not rotate
            np.concatenate(
                [one[..., :4], half_rope(one[..., 4:8], lines), half_rope(one[..., 8:12], columns), one[..., 12:]], -1
            )
            for one in (q, k)
        )
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        x = x + linear(gelu_erf(linear(layer_norm(x, own, "ln2"), own, "ffn_up")), own, "ffn_down")
    y = linear(gelu_erf(linear(x, weights, "mm.1")), weights, "mm.2")
    return linear(gelu_erf(linear(blocks(y, height, width), weights, "mm.merger.fc1")), weights, "mm.merger.fc2")


def half_rope(x, positions):
    """Turn pairs (j, j + half)."""
    half = x.shape[-1] // 2
    angles = np.outer(positions, 10000.0 ** (-np.arange(half) / half))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def triangles(n, size):
    """Weights of each of `size` table rows for n positions: bilinear, wider where it shrinks, within the table."""
    wide, at = max(size / n, 1.0), (np.arange(n) + 0.5) * size / n - 0.5
    out = np.maximum(1 - np.abs(np.arange(size) - at[:, None]) / wide, 0)
    return out / out.sum(axis=1, keepdims=True)


def phi4(weights, grid, patches, heads=2, eps=1e-6):
    _, height, width = grid
    n, table = height * width, weights["v.position_embd.weight"].reshape(8, 8, -1)
    x = linear(patches, weights, "v.patch_embd")
    x = x + np.einsum("yi,xj,ijc->yxc", triangles(height, 8), triangles(width, 8), table).reshape(n, -1)
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "ln1", eps)
        q, k, v = (linear(h, own, f"attn_{one}").reshape(n, heads, -1).swapaxes(0, 1) for one in "qkv")
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        x = x + linear(gelu(linear(layer_norm(x, own, "ln2", eps), own, "ffn_up")), own, "ffn_down")
    return linear(gelu_erf(linear(x, weights, "mm.0")), weights, "mm.2")


def youtu_vl(weights, grid, patches, heads=2, eps=1e-6):
    _, height, width = grid
    n = height * width
    x = patches.reshape(n, 3, -1).swapaxes(1, 2).reshape(n, -1)  # colors of a pixel side by side
    x = linear(x, weights, "v.patch_embd")
    lines, columns = np.divmod(np.arange(n), width)
    windows = lines // 4 * width + columns // 4
    for i in range(3):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "ln1", eps)
        q, k, v = (linear(h, own, f"attn_{one}").reshape(n, heads, -1).swapaxes(0, 1) for one in "qkv")
        q, k, y = qwen_rope(q, lines, columns), qwen_rope(k, lines, columns), np.zeros_like(q)
        for own_rows in [np.arange(n)] if i == 1 else [np.flatnonzero(windows == one) for one in set(windows)]:
            y[:, own_rows] = attention(q[:, own_rows], k[:, own_rows], v[:, own_rows])
        x = x + linear(y.swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        x = x + linear(gelu(linear(layer_norm(x, own, "ln2", eps), own, "ffn_up")), own, "ffn_down")
    x = rms_norm(layer_norm(x, weights, "v.post_ln", eps), 1e-6, weights["mm.input_norm.weight"])
    return linear(gelu_erf(linear(blocks(x, height, width), weights, "mm.0")), weights, "mm.2")


def blocks(x, height, width):
    """Concatenate 2 x 2 neighbors."""
    return x.reshape(height // 2, 2, width // 2, 2, -1).swapaxes(1, 2).reshape(height * width // 4, -1)


def cubic(n, size):
    """Weights of each of `size` table rows for n positions: bicubic with a = -0.75 and half-pixel centers."""
    out = np.zeros((n, size))
    for i in range(n):
        at = (i + 0.5) * size / n - 0.5
        for j in range(math.floor(at) - 1, math.floor(at) + 3):
            d = abs(at - j)
            near = 1.25 * d**3 - 2.25 * d**2 + 1
            out[i, min(max(j, 0), size - 1)] += near if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
    return out


def kimi_k25(weights, grid, patches, heads=2, eps=1e-5):
    _, height, width = grid
    n, table = height * width, weights["v.position_embd.weight"]
    lines, columns = np.divmod(np.arange(n), width)
    x = linear(patches, weights, "v.patch_embd")
    x = x + np.einsum("yi,xj,ijc->yxc", cubic(height, 8), cubic(width, 8), table).reshape(n, -1)
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        parts = np.split(linear(layer_norm(x, own, "ln1"), own, "attn_qkv"), 3, axis=1)
        q, k, v = (one.reshape(n, heads, -1).swapaxes(0, 1) for one in parts)
        q, k = (
            np.concatenate([pair_rope(one[..., :8], columns), pair_rope(one[..., 8:], lines)], -1) for one in (q, k)
        )
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        x = x + linear(gelu(linear(layer_norm(x, own, "ln2"), own, "ffn_up")), own, "ffn_down")
    x = layer_norm(layer_norm(x, weights, "v.post_ln"), weights, "mm.input_norm")
    return linear(gelu_erf(linear(blocks(x, height, width), weights, "mm.1")), weights, "mm.2")


def step3_vl(weights, grid, patches, heads=2, eps=1e-5):
    side, n = grid[1], len(patches)
    lines, columns = np.divmod(np.arange(n), side)
    step = 8 // side  # rows of the table for a patch: of a half of the side, the middle of two
    table = weights["v.position_embd.weight"].reshape(side, step, side, step, -1).mean(axis=(1, 3)).reshape(n, -1)
    x = layer_norm(linear(patches, weights, "v.patch_embd") + table, weights, "v.pre_ln")
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        parts = np.split(linear(layer_norm(x, own, "ln1"), own, "attn_qkv"), 3, axis=1)
        q, k, v = (one.reshape(n, heads, -1).swapaxes(0, 1) for one in parts)
        q, k = (
            np.concatenate([pair_rope(one[..., :8], columns), pair_rope(one[..., 8:], lines)], -1) for one in (q, k)
        )
        a = linear(attention(q, k, v).swapaxes(0, 1).reshape(n, -1), own, "attn_out")
        x = x + own["ls1.weight"] * a
        y = linear(layer_norm(x, own, "ln2"), own, "ffn_up")
        x = x + own["ls2.weight"] * linear(y / (1 + np.exp(-1.702 * y)), own, "ffn_down")
    x = halved(halved(x.reshape(side, side, -1), weights, "mm.0"), weights, "mm.1")
    return linear(x.reshape(-1, x.shape[-1]), weights, "mm.model.fc")


def nemotron_vl(weights, grid, patches, heads=2, eps=1e-6):
    x = linear(patches, weights, "v.patch_embd") + weights["v.position_embd.weight"]
    x = np.concatenate([weights["v.class_embd"], x])
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "ln1", eps)
        q, k, v = (linear(h, own, f"attn_{one}").reshape(len(x), heads, -1).swapaxes(0, 1) for one in "qkv")
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(len(x), -1), own, "attn_out")
        x = x + linear(gelu_erf(linear(layer_norm(x, own, "ln2", eps), own, "ffn_up")), own, "ffn_down")
    x = x[len(weights["v.class_embd"]) :].reshape(grid[1] // 2, 2, grid[2] // 2, 2, -1)
    y = rms_norm(x.swapaxes(1, 2).reshape(len(patches) // 4, -1), 1e-6, weights["mm.model.mlp.0.weight"])
    return linear(np.maximum(linear(y, weights, "mm.model.mlp.1"), 0) ** 2, weights, "mm.model.mlp.3")


def granite4_vision(weights, grid, patches, heads=2, eps=1e-6):
    x, levels, streams = linear(patches, weights, "v.patch_embd") + weights["v.position_embd.weight"], [], []
    for i in range(2):
        own = {name.removeprefix(f"v.blk.{i}."): one for name, one in weights.items()}
        h = layer_norm(x, own, "ln1", eps)
        q, k, v = (linear(h, own, f"attn_{one}").reshape(len(x), heads, -1).swapaxes(0, 1) for one in "qkv")
        x = x + linear(attention(q, k, v).swapaxes(0, 1).reshape(len(x), -1), own, "attn_out")
        x = x + linear(gelu(linear(layer_norm(x, own, "ln2", eps), own, "ffn_up")), own, "ffn_down")
        levels.append(x)
    for k, (level, offset) in enumerate(((1, -1), (0, 1), (1, 2))):
        own = {name.removeprefix(f"v.proj_blk.{k}."): one for name, one in weights.items()}
        seen = layer_norm(levels[level], own, "norm", eps).reshape(*grid[1:], -1)
        begun = (
            seen.reshape(4, 2, 4, 2, -1).mean(axis=(1, 3)) if offset < 0 else seen[offset // 2 :: 2, offset % 2 :: 2]
        )
        rows = np.zeros((4, 4, 64))
        for y, x in ((0, 0), (0, 1), (1, 0), (1, 1)):
            window = seen[4 * y : 4 * y + 4, 4 * x : 4 * x + 4].reshape(16, -1) + own["img_pos"][0]
            part = slice(2 * y, 2 * y + 2), slice(2 * x, 2 * x + 2)
            rows[part] = query_former(begun[part].reshape(4, -1) + own["query"][0], window, own).reshape(2, 2, -1)
        streams.append(rows.reshape(16, -1))
    return np.concatenate([np.concatenate(streams, axis=1), np.tile(weights["v.image_newline"], (1, 3))])


def query_former(rows, window, own):
    rows = layer_norm(rows, own, "post_norm", 1e-12)
    for which in ("self", "cross"):
        seen, name = window if which == "cross" else rows, f"{which}_attn"
        q, k, v = (
            linear(one, own, f"{name}_{part}").reshape(len(one), -1, 64).swapaxes(0, 1)
            for part, one in (("q", rows), ("k", seen), ("v", seen))
        )
        a = linear(attention(q, k, v).swapaxes(0, 1).reshape(len(rows), -1), own, f"{name}_out")
        rows = layer_norm(rows + a, own, f"{name}_norm", 1e-12)
    rows = layer_norm(rows + linear(gelu_erf(linear(rows, own, "ffn_up")), own, "ffn_down"), own, "ffn_norm", 1e-12)
    return linear(rows, own, "linear")


def halved(x, weights, name):
    """A filter of 3 x 3 with stride 2 over lines and columns, with a border of zeros."""
    x, side = np.pad(x, ((1, 1), (1, 1), (0, 0))), len(x) // 2
    taps = [
        x[i : i + 2 * side : 2, j : j + 2 * side : 2] @ weights[f"{name}.weight"][:, :, i, j].T
        for i in range(3)
        for j in range(3)
    ]
    return sum(taps) + weights.get(f"{name}.bias", 0.0)


def pair_rope(x, positions):
    """Turn adjacent pairs."""
    angles = np.outer(positions, 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]))
    a, b = x[..., ::2], x[..., 1::2]
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    return np.stack(turned, axis=-1).reshape(x.shape)


def gelu(x):
    return 0.5 * x * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gemma4_12b_audio(weights, samples):
    frames = np.pad(samples.astype(np.float64), (0, -len(samples) % 640)).reshape(-1, 640)
    return linear(rms_norm(frames, 1e-6), weights, "mm.a.input_projection")


NUMPY_TOWERS = {
    "exaone4.5": exaone45,
    "minimax-m3": minimax_m3,
    "phi4": phi4,
    "youtuvl": youtu_vl,
    "gemma4-12b": gemma4_12b,
    "glm-ocr": glm_ocr,
    "kimik25": kimi_k25,
    "step3vl": step3_vl,
    "nemotron_v2_vl": nemotron_vl,
    "granite4_vision": granite4_vision,
}
NUMPY_AUDIO_TOWERS = {"gemma4ua": gemma4_12b_audio}
