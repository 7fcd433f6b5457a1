"""Lossless repacking of other formats' quantized matrices into GGUF blocks, with the same integers and scales.

Functions take integers of shape (rows, columns) and scales of shape (rows, groups), and return rows of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.errors import UnsupportedError

Bytes = NDArray[np.uint8]
Integers = NDArray[Any]
_BLOCK = 32


def exact_f16(values: NDArray[np.float32], name: str) -> NDArray[np.float16]:
    """Convert to F16. Raise an UnsupportedError that names the tensor if a number is not exact in F16."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.array_equal(halves.astype(np.float32), values):
        raise UnsupportedError(
            f"tensor {name!r:.90} has scales that are not exact in F16, GGUF's type of scales; convert the original"
            " BF16 or F16 checkpoint"
        )
    return halves


def unpack_bits(words: Integers, bits: int = 4) -> NDArray[np.uint8]:
    """Unpack numbers from 32-bit words, lowest bits first: (..., n) to (..., n * 32 // bits)."""
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (unsigned[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    unpacked: NDArray[np.uint8] = parts.astype(np.uint8).reshape(*words.shape[:-1], -1)
    return unpacked


def _blocks(values: Integers, scales: NDArray[np.float16]) -> tuple[Integers, Bytes]:
    """Return integers in blocks of 32, and the two bytes of each block's scale."""
    n_columns = values.shape[1]
    per_block = np.repeat(scales, n_columns // _BLOCK // scales.shape[1], axis=1)
    return values.reshape(-1, _BLOCK), np.ascontiguousarray(per_block).reshape(-1, 1).view(np.uint8)


def _nibbles(blocks: Integers) -> Bytes:
    """Pack the first half of a block into low bits, the second half into high bits."""
    low, high = blocks[:, :16].astype(np.uint8), blocks[:, 16:].astype(np.uint8)
    packed: Bytes = low | (high << np.uint8(4))
    return packed


def q4_0_rows(values: Integers, scales: NDArray[np.float16]) -> Bytes:
    """Pack q in 0..15; the value is (q - 8) * scale."""
    blocks, d = _blocks(values, scales)
    return np.concatenate([d, _nibbles(blocks)], axis=1).reshape(len(values), -1)


def q4_1_rows(values: Integers, scales: NDArray[np.float16], offsets: NDArray[np.float16]) -> Bytes:
    """Pack q in 0..15; the value is q * scale + offset."""
    blocks, d = _blocks(values, scales)
    _, m = _blocks(values, offsets)
    return np.concatenate([d, m, _nibbles(blocks)], axis=1).reshape(len(values), -1)


def q5_0_rows(values: Integers, scales: NDArray[np.float16]) -> Bytes:
    """Pack q in 0..31; the value is (q - 16) * scale."""
    blocks, d = _blocks(values, scales)
    top = np.packbits((blocks >> 4).astype(np.uint8) & np.uint8(1), axis=1, bitorder="little")
    return np.concatenate([d, top, _nibbles(blocks & 15)], axis=1).reshape(len(values), -1)


def q8_0_rows(values: Integers, scales: NDArray[np.float16]) -> Bytes:
    """Pack q in -128..127; the value is q * scale."""
    blocks, d = _blocks(values, scales)
    return np.concatenate([d, blocks.astype(np.int8).view(np.uint8)], axis=1).reshape(len(values), -1)


def mxfp4_rows(blocks: Bytes, exponents: Bytes) -> Bytes:
    """Pack blocks of shape (..., n, 16), with two adjacent numbers per byte, and exponents of shape (..., n)."""
    codes = np.stack([blocks & np.uint8(15), blocks >> np.uint8(4)], axis=-1).reshape(*blocks.shape[:-1], _BLOCK)
    flat = codes.reshape(-1, _BLOCK)
    rows = np.concatenate([exponents.reshape(-1, 1), _nibbles(flat)], axis=1)
    return rows.reshape(*blocks.shape[:-2], -1)


def nvfp4_rows(codes: Bytes, scales: Bytes) -> Bytes:
    """Pack codes of shape (rows, columns // 2), two adjacent numbers per byte, and an E4M3 scale per 16 columns."""
    n_rows = len(codes)
    pairs = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=-1).reshape(-1, 4, 16)
    runs = pairs[:, :, :8] | (pairs[:, :, 8:] << np.uint8(4))
    return np.concatenate([scales.reshape(-1, 4), runs.reshape(-1, 32)], axis=1).reshape(n_rows, -1)
