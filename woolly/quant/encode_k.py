"""Search for the scales of Q4_K and Q6_K, which fit their group in the least-squares sense."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Groups with a smaller largest magnitude become zero: their scale would be zero in float16 anyway.
_TINY = np.float32(1e-15)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Return numerator / denominator, or 0 for a denominator of 0."""
    out = np.zeros(np.broadcast_shapes(numerator.shape, denominator.shape), dtype=np.float32)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def _fit_affine(x: Floats, n_levels: int) -> tuple[Floats, Floats]:
    """Return scale and offset (at least 0) per group, such that scale * level - offset approximates x.

    The search tries 21 ranges around the group's range, computes the weighted least-squares line through the levels of
    each range, and returns the best line. Large values have more weight, as in a dot product. x is (n_groups, size).
    """
    top = np.float32(n_levels - 1)
    weights = np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + np.abs(x)
    sum_w = weights.sum(axis=1)
    sum_x = (weights * x).sum(axis=1)
    low = np.minimum(x.min(axis=1), np.float32(0))
    span = x.max(axis=1) - low
    shifted = x - low[:, None]

    best_scale = span / top
    best_low = low.copy()
    levels = np.rint(shifted * _ratio(top, span)[:, None]).clip(0, top)
    best_error = (weights * (best_scale[:, None] * levels + low[:, None] - x) ** 2).sum(axis=1)
    for step in range(21):
        inverse = _ratio(top + np.float32(-1 + 0.1 * step), span)
        levels = np.rint(shifted * inverse[:, None]).clip(0, top)
        weighted = weights * levels
        sum_l = weighted.sum(axis=1)
        sum_l2 = (weighted * levels).sum(axis=1)
        sum_xl = (weighted * x).sum(axis=1)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        scale = _ratio(sum_w * sum_xl - sum_x * sum_l, determinant)
        offset = _ratio(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        # The format stores no positive offset, so a line through zero is the best choice.
        scale = np.where(offset > 0, _ratio(sum_xl, sum_l2), scale)
        offset = np.minimum(offset, np.float32(0))
        error = (weights * (scale[:, None] * levels + offset[:, None] - x) ** 2).sum(axis=1)
        better = (determinant > 0) & (scale >= 0) & (error < best_error)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_low = np.where(better, offset, best_low)
    return best_scale, -best_low


def _half(largest: Floats, most: int) -> NDArray[np.float16]:
    """Return largest / most as float16, such that `most` steps of this size reach the largest value.

    Below most * 2**-24, the steps between subnormal float16 numbers are so wide that the nearest one may be too small
    by more than half a step, or zero. The next larger one then has a smaller error.
    """
    half = (largest / np.float32(most)).astype("<f2")
    reach = (abs(most) + np.float32(0.5)) * np.abs(half.astype(np.float32))
    short = np.abs(largest) > np.maximum(reach, np.float32(2**-25))
    up = np.copysign(np.float32(2**-24), largest * np.float32(most))
    out: NDArray[np.float16] = np.where(short, half.astype(np.float32) + up, half).astype("<f2")
    return out


def encode_q4_k(blocks: Floats, out: Bytes) -> None:
    """Encode blocks of 256 values to 144 bytes: eight groups of 32, each with a 6-bit scale and a 6-bit minimum."""
    n_blocks = len(blocks)
    scales, mins = (part.reshape(n_blocks, 8) for part in _fit_affine(blocks.reshape(-1, 32), 16))
    d = _half(scales.max(axis=1, keepdims=True), 63)
    dmin = _half(mins.max(axis=1, keepdims=True), 63)
    # Relative to the scale as stored in float16, so that its rounding error is not added.
    whole = np.rint(_ratio(scales, d.astype(np.float32))).clip(0, 63).astype(np.uint8)
    whole_mins = np.rint(_ratio(mins, dmin.astype(np.float32))).clip(0, 63).astype(np.uint8)

    step = (d.astype(np.float32) * whole)[:, :, None]
    offset = (dmin.astype(np.float32) * whole_mins)[:, :, None]
    levels = np.rint(_ratio(blocks.reshape(n_blocks, 8, 32) + offset, step)).clip(0, 15).astype(np.uint8)

    out[:, 0:2] = d.view(np.uint8)
    out[:, 2:4] = dmin.view(np.uint8)
    four = np.uint8(4)
    out[:, 4:8] = whole[:, :4] | (whole[:, 4:] >> four << np.uint8(6))
    out[:, 8:12] = whole_mins[:, :4] | (whole_mins[:, 4:] >> four << np.uint8(6))
    out[:, 12:16] = (whole[:, 4:] & np.uint8(15)) | (whole_mins[:, 4:] << four)
    out[:, 16:] = (levels[:, 0::2] | (levels[:, 1::2] << four)).reshape(n_blocks, 128)


def _fit_symmetric(x: Floats, half_range: int) -> Floats:
    """Return the scale per group such that scale * level approximates x, for levels -half_range to half_range - 1.

    The search tries 19 scales around the scale that maps the largest magnitude to -half_range, each refined by least
    squares with weights x**2. x is (n_groups, size).
    """
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=1, keepdims=True), axis=1)[:, 0]
    # Weights are squares of values scaled to at most 1, because squares of tiny groups would underflow.
    unit = _ratio(x, largest[:, None])
    weights = unit * unit
    best_scale = np.zeros(len(x), dtype=np.float32)
    best_gain = np.zeros(len(x), dtype=np.float32)
    for step in (0, *range(-9, 0), *range(1, 10)):
        levels = np.rint(unit * np.float32(-(half_range + 0.1 * step))).clip(-half_range, half_range - 1)
        weighted = weights * levels
        sum_xl = (weighted * unit).sum(axis=1)
        sum_l2 = (weighted * levels).sum(axis=1)
        scale = _ratio(sum_xl, sum_l2)
        gain = scale * sum_xl
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_scale = np.where(better, scale, best_scale)
    return np.where(np.abs(largest) < _TINY, np.float32(0), best_scale * largest)


def encode_q6_k(blocks: Floats, out: Bytes) -> None:
    """Encode blocks of 256 values to 210 bytes: sixteen groups of 16 with an 8-bit scale each."""
    n_blocks = len(blocks)
    scales = _fit_symmetric(blocks.reshape(-1, 16), 32).reshape(n_blocks, 16)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1, keepdims=True), axis=1)
    d = _half(largest, -128)
    whole = np.rint(_ratio(scales, d.astype(np.float32))).clip(-128, 127).astype(np.int8)

    step = (d.astype(np.float32) * whole)[:, :, None]
    levels = np.rint(_ratio(blocks.reshape(n_blocks, 16, 16), step)).clip(-32, 31) + np.float32(32)
    # (n_blocks, halves, quarters, 32)
    quarters = levels.astype(np.uint8).reshape(n_blocks, 2, 4, 32)
    low, high = quarters & np.uint8(15), quarters >> np.uint8(4)
    out[:, :128] = (low[:, :, :2] | (low[:, :, 2:] << np.uint8(4))).reshape(n_blocks, 128)
    pairs = high << np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    out[:, 128:192] = np.bitwise_or.reduce(pairs, axis=2).reshape(n_blocks, 64)
    out[:, 192:208] = whole.view(np.uint8)
    out[:, 208:] = d.view(np.uint8)
