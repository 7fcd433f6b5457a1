"""Random weights of every type that kernels compute with, made as raw blocks, and taken apart into whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woolly import _native
from woolly.plan import Weight
from woolly.quant import GGMLType, dequantize


def _types_with(activations: str) -> tuple[GGMLType, ...]:
    return tuple(GGMLType[name] for name, row in _native.types().items() if row[3] == activations)


FLOATS, BLOCKS_32, BLOCKS_256 = _types_with("f32"), _types_with("q8_32"), _types_with("q8_256")
QUANTIZED = (*BLOCKS_32, *BLOCKS_256)
TYPES = (*FLOATS, *QUANTIZED)

# Byte offsets in a block of its f16 scale and of its f16 minimum.
_SCALE = {GGMLType.Q2_K: 80, GGMLType.Q3_K: 108, GGMLType.Q6_K: 208, GGMLType.TQ1_0: 52, GGMLType.TQ2_0: 64}
_MINIMUM = {GGMLType.Q4_1: 2, GGMLType.Q5_1: 2, GGMLType.Q2_K: 82, GGMLType.Q4_K: 2, GGMLType.Q5_K: 2}
# What a scale is a multiple of, such that all else is whole. Other types: 1.
_UNIT = dict.fromkeys((t for t in QUANTIZED if t.name.startswith(("IQ1", "IQ2"))), 0.125) | {GGMLType.IQ3_XXS: 0.25}


@dataclass(frozen=True)
class Raw:
    """A tensor as a file holds it."""

    type: GGMLType
    shape: tuple[int, ...]
    data: np.ndarray  # bytes

    def values(self) -> np.ndarray:
        return dequantize(self.data, self.type).reshape(self.shape)


def rows_of(raw: Raw, weight: Weight) -> Raw:
    """Rows of a tensor that a step reads: all, or the range at the end of the weight's name."""
    if weight.name == weight.tensor:
        return raw
    first, last = (int(n) for n in weight.name.removeprefix(weight.tensor).strip("[]").split(":"))
    return Raw(raw.type, weight.shape, raw.data.reshape(raw.shape[0], -1)[first:last].reshape(-1))


def random_weight(rng: np.random.Generator, type: GGMLType, rows: int, columns: int) -> Raw:
    """A matrix whose every byte is random but for the float scales, which are small: of either sign, some tiny or 0."""
    if type in FLOATS:
        return Raw(type, (rows, columns), _random_floats(rng, type, (rows, columns)))
    blocks = rng.integers(0, 256, (rows, columns // type.block_size, type.type_size), dtype=np.uint8)
    if type == GGMLType.MXFP4:
        blocks[..., 0] = rng.integers(118, 126, blocks.shape[:2])
        blocks[..., 0][rng.random(blocks.shape[:2]) < 0.05] = rng.integers(0, 4)
    elif type == GGMLType.NVFP4:
        blocks[..., :4] = rng.integers(0, 48, (*blocks.shape[:2], 4))
    elif type == GGMLType.IQ1_M:
        _spread_scale(blocks, _random_scales(rng, blocks.shape[:2]).view(np.uint16)[..., 0])
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

    Scales and minima are f32, one per block (in NVFP4 per 16 columns); numbers and factors are whole, one per column.
    They are what dequantization gives for blocks of scale 1 and minimum 0, and of scale 0 and minimum 1.
    """
    type, (rows, columns) = weight.type, weight.shape
    blocks = weight.data.reshape(rows, -1, type.type_size)
    nothing = np.zeros((rows, columns), np.int64)
    if type == GGMLType.NVFP4:
        ones, twos = blocks.copy(), blocks.copy()
        ones[..., :4] = 0x40  # half of 2
        twos[..., 4:] = 0x22  # 2 times a half
        scale = dequantize(twos.reshape(rows, -1), type)[:, ::16] / 2
        return scale, _whole(ones, type, weight.shape), np.zeros_like(scale), nothing
    if type == GGMLType.MXFP4:
        ones = blocks.copy()
        ones[..., 0] = 128
        scale = np.ldexp(np.float32(1), blocks[..., 0].astype(np.int32) - 128).astype(np.float32)
        return scale, _whole(ones, type, weight.shape), np.zeros_like(scale), nothing
    unit = _UNIT.get(type, 1.0)
    if type == GGMLType.IQ1_M:
        scale, ones = _spread_halves(blocks) * np.float32(unit), blocks.copy()
        _spread_scale(ones, np.full(blocks.shape[:2], 1 / unit, np.float16).view(np.uint16))
        return scale, _whole(ones, type, weight.shape), np.zeros_like(scale), nothing
    at, low = _SCALE.get(type, 0), _MINIMUM.get(type)
    scale = _halves(blocks, at) * np.float32(unit)
    numbers = _whole(_with(blocks, {at: 1 / unit} | ({} if low is None else {low: 0.0})), type, weight.shape)
    if low is None:
        return scale, numbers, np.zeros_like(scale), nothing
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


def _spread_scale(blocks: np.ndarray, bits: np.ndarray) -> None:
    """Write the float16 of an IQ1_M block, whose nibbles are the top ones of its last four half words."""
    for i in range(4):
        top = (bits >> np.uint16(4 * i) & np.uint16(15)).astype(np.uint8) << np.uint8(4)
        blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & np.uint8(15) | top


def _spread_halves(blocks: np.ndarray) -> np.ndarray:
    bits = np.zeros(blocks.shape[:2], np.uint16)
    for i in range(4):
        bits |= (blocks[..., 49 + 2 * i].astype(np.uint16) >> np.uint16(4)) << np.uint16(4 * i)
    return bits.view(np.float16).astype(np.float32)


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
