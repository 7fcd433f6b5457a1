"""Byte layout of the IQ1, IQ2 and IQ3 types: codebook indices, signs and odd sub-scales."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.quant.types import GGMLType

Bytes = NDArray[np.uint8]  # (n_blocks, type_size) or a part of its columns
Floats = NDArray[np.float32]  # (n_blocks, 256) unless noted otherwise
Whole = NDArray[np.uint32]

_EIGHTH, _QUARTER = np.float32(0.125), np.float32(0.25)
# Signs of eight columns. The number of negative signs is even, so seven bits determine the eighth.
_EIGHT_SIGNS = np.array([bits | bits.bit_count() % 2 << 7 for bits in range(128)], dtype=np.uint8)


@cache
def _points(name: str, width: int) -> Floats:
    """Return the points of a codebook, shape (n_points, width)."""
    return np.frombuffer(_native.codebooks()[name], np.int8).reshape(-1, width).astype(np.float32)


def _whole(part: Bytes, dtype: str = "u1") -> Whole:
    """Return little-endian integers from a part of each block."""
    return np.ascontiguousarray(part).view(dtype).astype(np.uint32)


def _fields(numbers: Whole, n_fields: int, width: int) -> Whole:
    """Return fields of `width` bits, lowest first, n_fields from each number in order: (n_blocks, n)."""
    shifts = np.arange(0, n_fields * width, width, dtype=np.uint32)
    fields: Whole = (numbers[:, :, None] >> shifts) & np.uint32((1 << width) - 1)
    return fields.reshape(len(numbers), -1)


def _half(blocks: Bytes) -> Floats:
    """Return the float16 that begins each block, shape (n_blocks, 1)."""
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _odd(factors: Whole) -> Floats:
    """Return the odd factors 1, 3, 5, ..."""
    return (2 * factors + 1).astype(np.float32)


def _scale(values: Floats, unit: Floats, factors: Whole, out: Floats) -> None:
    """Write values times the odd factor of their group times the unit of their block. Every product is exact."""
    groups = values.reshape(len(out), factors.shape[1], -1)
    np.multiply(groups, (unit * _odd(factors))[:, :, None], out=out.reshape(groups.shape))


def _signed(values: Floats, signs: Bytes) -> Floats:
    """Return the values, negated where the sign bit is set. `signs` is (n_blocks, 32), one bit per column."""
    negative = np.unpackbits(np.ascontiguousarray(signs), axis=1, bitorder="little").astype(bool)
    flat = values.reshape(len(signs), 256)
    return np.where(negative, -flat, flat)


def _iq2_xxs(blocks: Bytes, out: Floats) -> None:
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    ranks, words = groups[:, :, :4].reshape(-1, 32), _whole(groups[:, :, 4:].reshape(-1, 32), "<u4")
    values = _signed(_points("IQ2_XXS", 8)[ranks], _EIGHT_SIGNS[_fields(words, 4, 7)])
    _scale(values, _half(blocks) * _EIGHTH, words >> np.uint32(28), out)


def _iq2_xs(blocks: Bytes, out: Floats) -> None:
    quants = _whole(blocks[:, 2:66], "<u2")
    values = _signed(_points("IQ2_XS", 8)[quants & np.uint32(511)], _EIGHT_SIGNS[quants >> np.uint32(9)])
    _scale(values, _half(blocks) * _EIGHTH, _fields(_whole(blocks[:, 66:]), 2, 4), out)


def _iq2_s(blocks: Bytes, out: Floats) -> None:
    ranks = blocks[:, 2:34] | _fields(_whole(blocks[:, 66:74]), 4, 2) << np.uint32(8)
    values = _signed(_points("IQ2_S", 8)[ranks], blocks[:, 34:66])
    _scale(values, _half(blocks) * _EIGHTH, _fields(_whole(blocks[:, 74:]), 2, 4), out)


def _iq3_xxs(blocks: Bytes, out: Floats) -> None:
    words = _whole(blocks[:, 66:], "<u4")
    values = _signed(_points("IQ3_XXS", 4)[blocks[:, 2:66]], _EIGHT_SIGNS[_fields(words, 4, 7)])
    _scale(values, _half(blocks) * _QUARTER, words >> np.uint32(28), out)


def _iq3_s(blocks: Bytes, out: Floats) -> None:
    ranks = blocks[:, 2:66] | _fields(_whole(blocks[:, 66:74]), 8, 1) << np.uint32(8)
    values = _signed(_points("IQ3_S", 4)[ranks], blocks[:, 74:106])
    _scale(values, _half(blocks), _fields(_whole(blocks[:, 106:]), 2, 4), out)


def _iq1(ranks: Whole, down: Whole) -> Floats:
    """Return eight times the points, plus or minus 1: (n_blocks, 32, 8). Both arguments are (n_blocks, 32)."""
    values: Floats = _points("IQ1", 8)[ranks] + (1 - 2 * down.astype(np.float32))[:, :, None]
    return values


def _iq1_s(blocks: Bytes, out: Floats) -> None:
    groups = _whole(blocks[:, 34:], "<u2")
    ranks = blocks[:, 2:34] | _fields(groups, 4, 3) << np.uint32(8)
    values = _iq1(ranks, np.repeat(groups >> np.uint32(15), 4, axis=1))
    _scale(values, _half(blocks) * _EIGHTH, (groups >> np.uint32(12)) & np.uint32(7), out)


def _iq1_m(blocks: Bytes, out: Floats) -> None:
    nibbles, scales = _fields(_whole(blocks[:, 32:48]), 2, 4), _whole(blocks[:, 48:], "<u2")
    # The float16 is spread over the top nibbles of four 16-bit words.
    bits = (scales >> np.uint32(12)) << np.array([0, 4, 8, 12], dtype=np.uint32)
    unit = np.bitwise_or.reduce(bits, axis=1, keepdims=True).astype("<u2").view("<f2").astype(np.float32)
    values = _iq1(blocks[:, :32] | (nibbles & np.uint32(7)) << np.uint32(8), nibbles >> np.uint32(3))
    _scale(values, unit * _EIGHTH, _fields(scales, 4, 3), out)


# Codebook name of each type in `_native.codebooks()`, and its decoder.
CODEBOOK_TYPES: dict[GGMLType, tuple[str, Callable[[Bytes, Floats], None]]] = {
    GGMLType.IQ2_XXS: ("IQ2_XXS", _iq2_xxs),
    GGMLType.IQ2_XS: ("IQ2_XS", _iq2_xs),
    GGMLType.IQ2_S: ("IQ2_S", _iq2_s),
    GGMLType.IQ3_XXS: ("IQ3_XXS", _iq3_xxs),
    GGMLType.IQ3_S: ("IQ3_S", _iq3_s),
    GGMLType.IQ1_S: ("IQ1", _iq1_s),
    GGMLType.IQ1_M: ("IQ1", _iq1_m),
}


def codebook_of(type: GGMLType) -> str:
    """Return the name of a type's codebook in `_native.codebooks()`, or an empty string if it has none."""
    return CODEBOOK_TYPES[type][0] if type in CODEBOOK_TYPES else ""
