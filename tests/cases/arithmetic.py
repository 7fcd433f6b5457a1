"""The arithmetic that native kernels promise, in NumPy: rounding for rounding, or the bound of its error."""

from __future__ import annotations

import numpy as np

from tests.cases.weights import BLOCKS_256, FLOATS, Raw, whole_numbers
from woolly.quant import GGMLType

# Relative error of a sum of f32 products, whatever the order: they add up at random, to about sqrt(n) * 2^-24.
SLACK = 1e-6


def fused_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of f32 with one rounding."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits
    c = c.astype(np.float64)
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)  # exact: what the sum in f64 rounded away
    # Rounded to odd, so that the second rounding, to f32, is the only one that counts.
    even = total.view(np.int64) % 2 == 0
    odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where((lost != 0) & even, odd, total).astype(np.float32)


def multiply_then_add(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of f32 with two roundings: what the scalar level does on x86."""
    return a * b + c


def quantized(x: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Activations as whole numbers of at most 127, and one f32 scale per block."""
    groups = x.reshape(len(x), -1, block)
    largest = np.abs(groups).max(axis=-1)
    scale = largest / np.float32(127)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(groups * inverse[..., None]).astype(np.int64).reshape(x.shape), scale


def activation_block(type: GGMLType) -> int:
    """Columns that share a scale when activations meet weights of a type."""
    return 256 if type in BLOCKS_256 else 32


def linear(x: np.ndarray, weight: Raw, fma=fused_multiply_add) -> np.ndarray:
    """x times a quantized matrix, transposed: whole numbers within a block, one fma per block and part."""
    block = activation_block(weight.type)
    q, x_scale = quantized(x, block)
    scale, numbers, minimum, factors = whole_numbers(weight)
    acc = np.zeros((len(x), weight.shape[0]), np.float32)
    if weight.type == GGMLType.NVFP4:  # two scales, and two fmas, for each scale of the activations
        for g in range(weight.shape[1] // 16):
            part = slice(16 * g, 16 * (g + 1))
            dots = (q[:, part] @ numbers[:, part].T).astype(np.float32)
            acc = fma(dots, scale[None, :, g] * x_scale[:, g // 2, None], acc)
        return acc
    for b in range(weight.shape[1] // block):
        part = slice(b * block, (b + 1) * block)
        dots = q[:, part] @ numbers[:, part].T
        lows = q[:, part] @ factors[:, part].T
        s = x_scale[:, b, None]
        acc = fma(dots.astype(np.float32), scale[None, :, b] * s, acc)
        if block == 256:
            if factors.any():
                acc = fma(-lows.astype(np.float32), minimum[None, :, b] * -s, acc)
        elif factors.any():
            acc = fma(np.broadcast_to(minimum[None, :, b], acc.shape), s * lows.astype(np.float32), acc)
    return acc


def linear_bound(x: np.ndarray, weight: Raw) -> np.ndarray:
    """Error bound of a linear: half a step for each quantized activation, plus rounding."""
    w = np.abs(weight.values().astype(np.float64))
    bound = SLACK * (np.abs(x.astype(np.float64)) @ w.T)
    if weight.type in FLOATS:
        return bound
    block = activation_block(weight.type)
    _, scale = quantized(x, block)
    sums = w.reshape(len(w), -1, block).sum(axis=-1)
    # The step is scale = largest / 127 up to rounding; values lie at most half a step off.
    return bound + 0.5001 * scale.astype(np.float64) @ sums.T


def rounded_to_cache(x: np.ndarray, kv_type: str, inside: bool = False) -> np.ndarray:
    """Keys or values (last axis: head_dim) as a cache of this type gives them back. `inside`: V is a part of K."""
    if kv_type == "f32":
        return x
    if kv_type == "f16":
        return x.astype(np.float16).astype(np.float32)
    n = x.shape[-1]
    filled = np.pad(x.reshape(-1, n), ((0, 0), (0, -n % 32)))  # heads fill whole blocks
    if kv_type == "q4":
        together = 32 if inside else filled.shape[-1] & -filled.shape[-1]
        codes = encoded(turned(filled, together).reshape(-1, 32)).reshape(filled.shape)
        return turned(codes, together)[:, :n].reshape(x.shape)
    q, scale = quantized(filled, 32)
    return (q.astype(np.float32) * np.repeat(scale, 32, axis=-1))[:, :n].reshape(x.shape)


def turned(x: np.ndarray, together: int) -> np.ndarray:
    """Rows times Hadamard's matrix in f32, `together` columns at a time: sums of pairs, then of pairs of these."""
    y = x.reshape(-1, together).astype(np.float32)
    half = 1
    while half < together:
        pairs = y.reshape(-1, together // (2 * half), 2, half)
        y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(y.shape)
        half *= 2
    return (y * (np.float32(1) / np.sqrt(np.float32(together)))).reshape(x.shape)


IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def encoded(x: np.ndarray) -> np.ndarray:
    """Rows of 32 numbers as 4 bits and a scale in bf16 give them back: the better of two fits."""
    at = np.arange(len(x)), np.abs(x).argmax(axis=-1)
    fits = []
    for end in (IQ4[0], IQ4[15]):
        scale = (x[at] / end)[:, None]
        with np.errstate(divide="ignore"):
            inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        q = IQ4[((x * inverse)[:, :, None] > (IQ4[:-1] + IQ4[1:]) / 2).sum(axis=-1)]
        kept = _bf16(_sum_in_order(q * x) / _sum_in_order(q * q))[:, None]
        off = x - q * kept
        fits.append((q * kept, _sum_in_order(off * off)))
    (low, low_error), (high, high_error) = fits
    return np.where((high_error < low_error)[:, None], high, low)


def _sum_in_order(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=-1, dtype=np.float32)[:, -1]


def _bf16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
