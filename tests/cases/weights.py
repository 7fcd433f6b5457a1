"""Random weights of every type that kernels compute with, made as raw blocks, and taken apart into whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly.gguf import GGMLType, dequantize

FLOATS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
BLOCKS_32 = (
    GGMLType.Q4_0,
    GGMLType.Q4_1,
    GGMLType.Q5_0,
    GGMLType.Q5_1,
    GGMLType.Q8_0,
    GGMLType.IQ4_NL,
    GGMLType.MXFP4,
)
BLOCKS_256 = (
    GGMLType.Q2_K,
    GGMLType.Q3_K,
    GGMLType.Q4_K,
    GGMLType.Q5_K,
    GGMLType.Q6_K,
    GGMLType.IQ4_XS,
)
QUANTIZED = (*BLOCKS_32, *BLOCKS_256)
TYPES = (*FLOATS, *QUANTIZED)

# Byte of a block where its f16 scale lies, and where its f16 minimum does.
_SCALE = {GGMLType.Q2_K: 80, GGMLType.Q3_K: 108, GGMLType.Q6_K: 208}
_MINIMUM = {GGMLType.Q4_1: 2, GGMLType.Q5_1: 2, GGMLType.Q2_K: 82, GGMLType.Q4_K: 2, GGMLType.Q5_K: 2}


@dataclass(frozen=True)
class Raw:
    """A tensor as a file holds it."""

    type: GGMLType
    shape: tuple[int, ...]
    data: np.ndarray  # bytes

    def values(self) -> np.ndarray:
        return dequantize(self.data, self.type).reshape(self.shape)


def random_weight(rng: np.random.Generator, type: GGMLType, rows: int, columns: int) -> Raw:
    """A matrix whose every byte is random but for the float scales, which are small: of either sign, some tiny or 0."""
    if type in FLOATS:
        return Raw(type, (rows, columns), _random_floats(rng, type, (rows, columns)))
    blocks = rng.integers(0, 256, (rows, columns // type.block_size, type.type_size), dtype=np.uint8)
    if type == GGMLType.MXFP4:
        blocks[..., 0] = rng.integers(118, 126, blocks.shape[:2])
        blocks[..., 0][rng.random(blocks.shape[:2]) < 0.05] = rng.integers(0, 4)
    else:
        for at in (_SCALE.get(type, 0), _MINIMUM.get(type)):
            if at is not None:
                blocks[..., at : at + 2] = _random_scales(rng, blocks.shape[:2])
    return Raw(type, (rows, columns), blocks.reshape(rows, -1))


def random_vector(rng: np.random.Generator, n: int, around: float = 0.0) -> Raw:
    """Norm weights or biases."""
    values = (around + 0.2 * rng.standard_normal(n)).astype(np.float32)
    return Raw(GGMLType.F32, (n,), values.view(np.uint8))


def whole_numbers(weight: Raw) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A quantized matrix as scale, numbers, minimum, factors: value = scale * numbers + minimum * factors.

    Scales and minima are f32, one per block; numbers and factors are whole, one per column. They are what
    dequantization gives for blocks of scale 1 and minimum 0, and of scale 0 and minimum 1.
    """
    type, (rows, columns) = weight.type, weight.shape
    blocks = weight.data.reshape(rows, -1, type.type_size)
    if type == GGMLType.MXFP4:
        ones = blocks.copy()
        ones[..., 0] = 128
        scale = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128).astype(np.float32)
        return scale, _whole(ones, type, weight.shape), np.zeros_like(scale), np.zeros((rows, columns), np.int64)
    at, low = _SCALE.get(type, 0), _MINIMUM.get(type)
    scale = _halves(blocks, at)
    numbers = _whole(_with(blocks, {at: 1.0} | ({} if low is None else {low: 0.0})), type, weight.shape)
    if low is None:
        return scale, numbers, np.zeros_like(scale), np.zeros((rows, columns), np.int64)
    return scale, numbers, _halves(blocks, low), _whole(_with(blocks, {at: 0.0, low: 1.0}), type, weight.shape)


def _random_floats(rng: np.random.Generator, type: GGMLType, shape: tuple[int, int]) -> np.ndarray:
    values = rng.standard_normal(shape).astype(np.float32)
    if type == GGMLType.F16:
        values[rng.random(shape) < 0.05] *= 1e-6  # subnormal halves
        return values.astype(np.float16).view(np.uint8)
    if type == GGMLType.BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)


def _random_scales(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    scales = rng.uniform(0.005, 0.015, shape) * rng.choice([-1.0, 1.0], shape)
    special = rng.random(shape)
    scales[special < 0.04] = 0.0
    scales[special > 0.96] = 3e-7  # a subnormal half
    return np.ascontiguousarray(scales[..., None].astype(np.float16)).view(np.uint8)


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _with(blocks: np.ndarray, halves: dict[int, float]) -> np.ndarray:
    blocks = blocks.copy()
    for at, value in halves.items():
        blocks[..., at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return blocks


def _whole(blocks: np.ndarray, type: GGMLType, shape: tuple[int, ...]) -> np.ndarray:
    values = dequantize(blocks.reshape(shape[0], -1), type)
    whole = values.astype(np.int64)
    assert (whole == values).all()
    return whole
