"""Dequantization of each tensor type in NumPy, the reference for every kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from woolly.errors import GGUFError, UnsupportedError
from woolly.quant.codebooks import CODEBOOK_TYPES
from woolly.quant.types import GGMLType

Bytes = NDArray[np.uint8]  # (n_blocks, type_size) or a part of its columns
Floats = NDArray[np.float32]  # (n_blocks, block_size) unless noted otherwise

# Elements decoded at a time, so that the temporaries of a chunk fit in a second-level cache.
_CHUNK = 1 << 16

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
# Twice the values of E2M1, so that they are integers. The exponent below is halved to compensate.
_E2M1_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


def can_dequantize(type: GGMLType) -> bool:
    """Return True if `dequantize` supports this type."""
    return type in _DECODERS


def dequantize(data: NDArray[np.uint8], type: GGMLType) -> NDArray[np.float32]:
    """Dequantize rows of bytes, shape (..., bytes per row), to values, shape (..., elements per row)."""
    decode = _DECODERS.get(type)
    if decode is None:
        supported = ", ".join(known.name for known in GGMLType if can_dequantize(known))
        raise UnsupportedError(f"{type.name} cannot be dequantized yet; supported: {supported}")
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % type.type_size:
        raise GGUFError(
            f"expected {type.name} data as uint8 in rows of a multiple of {type.type_size} bytes, "
            f"found {data.dtype} of shape {data.shape}"
        )
    n_columns = data.shape[-1] // type.type_size * type.block_size
    out = np.empty((*data.shape[:-1], n_columns), dtype=np.float32)
    blocks = np.ascontiguousarray(data).reshape(-1, type.type_size)
    values = out.reshape(-1, type.block_size)
    step = max(1, _CHUNK // type.block_size)
    # Scales may have any bits. Infinities and NaN are returned as the format defines, without a warning.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            decode(blocks[start : start + step], values[start : start + step])
    return out


def _plain(dtype: str) -> Callable[[Bytes, Floats], None]:
    def decode(blocks: Bytes, out: Floats) -> None:
        out[:] = blocks.view(dtype)

    return decode


def _bf16(blocks: Bytes, out: Floats) -> None:
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _half(blocks: Bytes, start: int) -> Floats:
    """Return the float16 at a byte of each block, shape (n_blocks, 1)."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, out: Floats, run: int) -> None:
    """Unpack the low nibbles of each run of bytes, then the high nibbles: the common order of 4-bit types."""
    n_blocks = len(packed)
    halves = out.reshape(n_blocks, -1, 2, run)
    runs = packed.reshape(n_blocks, -1, run)
    halves[:, :, 0] = runs & np.uint8(15)
    halves[:, :, 1] = runs >> np.uint8(4)


def _fifth_bits(blocks: Bytes, start: int) -> Floats:
    """Return 16 for every set bit of the 32 bits at a byte of each block, shape (n_blocks, 32)."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    values: Floats = (bits << np.uint8(4)).astype(np.float32)
    return values


def _q4_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 2:], out, 16)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 4:], out, 16)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 6:], out, 16)
    out += _fifth_bits(blocks, 2)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 8:], out, 16)
    out += _fifth_bits(blocks, 4)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)


def _pairs(packed: Bytes) -> Bytes:
    """Return two-bit fields of runs of 32 bytes, lowest bits of the run first: (n_blocks, n_runs, 4, 32)."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    fields: Bytes = (packed.reshape(len(packed), -1, 1, 32) >> shifts) & np.uint8(3)
    return fields


def _q2_k(blocks: Bytes, out: Floats) -> None:
    n_blocks = len(blocks)
    scales = (blocks[:, :16] & np.uint8(15)).astype(np.float32) * _half(blocks, 80)
    mins = (blocks[:, :16] >> np.uint8(4)).astype(np.float32) * _half(blocks, 82)
    groups = out.reshape(n_blocks, 16, 16)
    np.multiply(_pairs(blocks[:, 16:80]).reshape(groups.shape), scales[:, :, None], out=groups)
    groups -= mins[:, :, None]


def _q3_k(blocks: Bytes, out: Floats) -> None:
    n_blocks = len(blocks)
    # Sixteen 6-bit scales: four low bits in 8 bytes by nibble, two high bits in 4 bytes by pair.
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    scales = np.empty((n_blocks, 16), dtype=np.uint8)
    scales[:, :8] = low & np.uint8(15)
    scales[:, 8:] = low >> np.uint8(4)
    for i in range(4):
        scales[:, 4 * i : 4 * i + 4] |= ((high >> np.uint8(2 * i)) & np.uint8(3)) << np.uint8(4)
    factors = (scales.astype(np.float32) - np.float32(32)) * _half(blocks, 108)
    groups = out.reshape(n_blocks, 16, 16)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    # If the high bit is set, nothing is subtracted.
    third = ((blocks[:, None, :32] >> shifts) & np.uint8(1)) << np.uint8(2)
    groups[:] = (_pairs(blocks[:, 32:96]).reshape(n_blocks, 8, 32) | third).reshape(groups.shape)
    groups -= 4
    groups *= factors[:, :, None]


def unpack_scales_k4(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the eight 6-bit scales and eight 6-bit mins in the 12 bytes of Q4_K and Q5_K, each (n_blocks, 8)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    low, top = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & low, (third & np.uint8(15)) | ((first >> np.uint8(2)) & top)], axis=1)
    mins = np.concatenate([second & low, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    return scales, mins


def _scale_k4(blocks: Bytes, groups: Floats) -> None:
    """Scale and shift eight groups of 32, as Q4_K and Q5_K both do. `groups` is (n_blocks, 8, 32)."""
    scales, mins = unpack_scales_k4(blocks[:, 4:16])
    groups *= (scales.astype(np.float32) * _half(blocks, 0))[:, :, None]
    groups -= (mins.astype(np.float32) * _half(blocks, 2))[:, :, None]


def _q4_k(blocks: Bytes, out: Floats) -> None:
    _nibbles(blocks[:, 16:], out, 32)
    _scale_k4(blocks, out.reshape(-1, 8, 32))


def _q5_k(blocks: Bytes, out: Floats) -> None:
    groups = out.reshape(-1, 8, 32)
    _nibbles(blocks[:, 48:], out, 32)
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    groups += ((blocks[:, None, 16:48] >> shifts) & np.uint8(1)) << np.uint8(4)
    _scale_k4(blocks, groups)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    n_blocks = len(blocks)
    _nibbles(blocks[:, :128], out, 64)
    out.reshape(n_blocks, 2, 4, 32)[:] += _pairs(blocks[:, 128:192]) << np.uint8(4)
    out -= 32
    groups = out.reshape(n_blocks, 16, 16)
    groups *= (blocks[:, 192:208].view(np.int8) * _half(blocks, 208))[:, :, None]


def _look_up(packed: Bytes, table: Floats, out: Floats) -> None:
    """Look up nibbles of runs of 16 bytes, low then high, in a table of 16 values."""
    n_blocks = len(packed)
    runs = packed.reshape(n_blocks, -1, 1, 16)
    indices = np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=2)
    np.take(table, indices.reshape(n_blocks, -1), out=out, mode="clip")


def _iq4_nl(blocks: Bytes, out: Floats) -> None:
    _look_up(blocks[:, 2:], IQ4_VALUES, out)
    out *= _half(blocks, 0)


def _iq4_xs(blocks: Bytes, out: Floats) -> None:
    n_blocks = len(blocks)
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = ((high & np.uint16(3)) << np.uint16(4)).astype(np.float32)
    scales[:, 0::2] += blocks[:, 4:8] & np.uint8(15)
    scales[:, 1::2] += blocks[:, 4:8] >> np.uint8(4)
    scales -= 32
    scales *= _half(blocks, 0)
    _look_up(blocks[:, 8:], IQ4_VALUES, out)
    groups = out.reshape(n_blocks, 8, 32)
    groups *= scales[:, :, None]


def _mxfp4(blocks: Bytes, out: Floats) -> None:
    exponent = blocks[:, :1].astype(np.uint32)
    # Half of 2**(exponent - 127). The two smallest values are subnormal.
    bits = np.where(exponent < 2, np.uint32(0x00200000) << exponent, (exponent - np.uint32(1)) << np.uint32(23))
    _look_up(blocks[:, 1:], _E2M1_VALUES, out)
    out *= bits.view(np.float32)


def _nvfp4(blocks: Bytes, out: Floats) -> None:
    n_blocks, codes = len(blocks), blocks[:, :4].astype(np.int32)
    # Half of an E4M3 number. The top bit is unused, and ggml reads the code 127 as 0.
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    fraction = np.where(exponent == 0, mantissa, mantissa + np.float32(8))
    scales = np.where(codes == 127, np.float32(0), np.ldexp(fraction, np.maximum(exponent, 1) - 11))
    runs = blocks[:, 4:].reshape(n_blocks, 4, 8)
    indices = np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=2)
    groups = out.reshape(n_blocks, 4, 16)
    np.multiply(_E2M1_VALUES[indices], scales[:, :, None], out=groups)


def _tq1_0(blocks: Bytes, out: Floats) -> None:
    powers = np.array([1, 3, 9, 27, 81], dtype=np.uint8)[:, None]
    column = 0
    # A byte encodes a base-3 fraction of 256: multiplying the remainder by 3 carries the next digit.
    for start, end, n_digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = (blocks[:, None, start:end] * powers[:n_digits]).reshape(len(blocks), -1)
        out[:, column : column + rest.shape[1]] = (rest.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
        column += rest.shape[1]
    out -= 1
    out *= _half(blocks, 52)


def _tq2_0(blocks: Bytes, out: Floats) -> None:
    out[:] = _pairs(blocks[:, :64]).reshape(len(blocks), 256)
    out -= 1
    out *= _half(blocks, 64)


_DECODERS: dict[GGMLType, Callable[[Bytes, Floats], None]] = {
    GGMLType.F32: _plain("<f4"),
    GGMLType.F16: _plain("<f2"),
    GGMLType.BF16: _bf16,
    GGMLType.F64: _plain("<f8"),
    GGMLType.I8: _plain("i1"),
    GGMLType.I16: _plain("<i2"),
    GGMLType.I32: _plain("<i4"),
    GGMLType.I64: _plain("<i8"),
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q4_K: _q4_k,
    GGMLType.Q5_K: _q5_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
    GGMLType.MXFP4: _mxfp4,
    GGMLType.NVFP4: _nvfp4,
    GGMLType.TQ1_0: _tq1_0,
    GGMLType.TQ2_0: _tq2_0,
    **{type: decoder for type, (_, decoder) in CODEBOOK_TYPES.items()},
}
