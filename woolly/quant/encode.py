"""Quantization of values to each tensor type in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from woolly.errors import GGUFError, UnsupportedError
from woolly.quant.encode_k import encode_q4_k, encode_q6_k
from woolly.quant.types import GGMLType

Bytes = NDArray[np.uint8]  # (n_blocks, type_size) or a part of its columns
Floats = NDArray[np.float32]  # (n_blocks, block_size)

# Elements encoded at a time, which limits the temporaries of the searches to a few megabytes.
_CHUNK = 1 << 16


def quantize(x: NDArray[np.floating], type: GGMLType) -> NDArray[np.uint8]:
    """Quantize values, shape (..., n), to rows of bytes, shape (..., type.row_bytes(n)).

    Raises GGUFError if a value is not finite, or too large for the type.
    """
    encode = _ENCODERS.get(type)
    if encode is None:
        supported = ", ".join(known.name for known in _ENCODERS)
        raise UnsupportedError(f"{type.name} cannot be written yet; supported: {supported}")
    if x.ndim == 0:
        raise GGUFError(f"expected an array of at least one dimension to quantize to {type.name}, found a scalar")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, dtype=np.float32)
    out = np.empty((*x.shape[:-1], type.row_bytes(x.shape[-1])), dtype=np.uint8)
    blocks = values.reshape(-1, type.block_size)
    encoded = out.reshape(-1, type.type_size)
    step = max(1, _CHUNK // type.block_size)
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        if not np.isfinite(chunk).all():
            row, column = divmod(start * type.block_size + int(np.argmin(np.isfinite(chunk))), x.shape[-1])
            raise GGUFError(
                f"expected finite values to quantize to {type.name}, "
                f"found {values.reshape(-1, x.shape[-1])[row, column]} in row {row}, column {column}"
            )
        # Reciprocals of tiny blocks overflow float32, and are handled where they occur.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            encode(chunk, encoded[start : start + step])
        if not _scales_are_finite(encoded[start : start + step], type):
            largest = np.abs(chunk).max()
            raise GGUFError(f"expected values that {type.name} can hold, found one as large as {largest:g}")
    return out


def _scales_are_finite(encoded: Bytes, type: GGMLType) -> bool:
    dtype, starts = _SCALES.get(type, ("<f2", ()))
    columns = [np.ascontiguousarray(encoded[:, start : start + 2]).view(dtype) for start in starts]
    if type is GGMLType.BF16:
        return all(bool(((column & 0x7F80) != 0x7F80).all()) for column in columns)
    return all(bool(np.isfinite(column).all()) for column in columns)


def _plain(dtype: str) -> Callable[[Floats, Bytes], None]:
    def encode(blocks: Floats, out: Bytes) -> None:
        out[:] = blocks.astype(dtype).view(np.uint8)

    return encode


def _bf16(blocks: Floats, out: Bytes) -> None:
    bits = blocks.view(np.uint32)
    # Round to nearest, ties to even. The sum cannot wrap: finite values stay below 0xFF800000.
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    out[:] = (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)


def _halves(scales: Floats) -> Bytes:
    return scales.astype("<f2").view(np.uint8)


def _reciprocal(scales: Floats) -> Floats:
    """Return 1/scale, or 0 if that is infinite or NaN."""
    inverse = np.float32(1) / scales
    finite: Floats = np.where(np.isfinite(inverse), inverse, np.float32(0))
    return finite


def _pack(levels: Bytes, out: Bytes) -> None:
    out[:] = (levels[:, :16] & np.uint8(15)) | (levels[:, 16:] << np.uint8(4))


def _symmetric(blocks: Floats, half_range: int) -> tuple[Floats, Bytes]:
    """Return scale and levels 0..2*half_range-1, such that the largest magnitude becomes level 0 exactly."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-half_range)
    levels = np.trunc(blocks * _reciprocal(scales) + np.float32(half_range + 0.5))
    return scales, levels.clip(0, 2 * half_range - 1).astype(np.uint8)


def _affine(blocks: Floats, n_levels: int) -> tuple[Floats, Floats, Bytes]:
    """Return scale, minimum and levels 0..n_levels-1 that span each block from its minimum to its maximum."""
    low = blocks.min(axis=1, keepdims=True)
    scales = (blocks.max(axis=1, keepdims=True) - low) / np.float32(n_levels - 1)
    levels = np.trunc((blocks - low) * _reciprocal(scales) + np.float32(0.5))
    return scales, low, levels.clip(0, n_levels - 1).astype(np.uint8)


def _q4_0(blocks: Floats, out: Bytes) -> None:
    scales, levels = _symmetric(blocks, 8)
    out[:, :2] = _halves(scales)
    _pack(levels, out[:, 2:])


def _q4_1(blocks: Floats, out: Bytes) -> None:
    scales, low, levels = _affine(blocks, 16)
    out[:, :2] = _halves(scales)
    out[:, 2:4] = _halves(low)
    _pack(levels, out[:, 4:])


def _q5_0(blocks: Floats, out: Bytes) -> None:
    scales, levels = _symmetric(blocks, 16)
    out[:, :2] = _halves(scales)
    out[:, 2:6] = np.packbits(levels >> np.uint8(4), axis=1, bitorder="little")
    _pack(levels, out[:, 6:])


def _q5_1(blocks: Floats, out: Bytes) -> None:
    scales, low, levels = _affine(blocks, 32)
    out[:, :2] = _halves(scales)
    out[:, 2:4] = _halves(low)
    out[:, 4:8] = np.packbits(levels >> np.uint8(4), axis=1, bitorder="little")
    _pack(levels, out[:, 8:])


def _q8_0(blocks: Floats, out: Bytes) -> None:
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _reciprocal(scales)
    # Round half away from zero, which np.rint does not. Adding 0.5 would round 0.49999997 up.
    whole = np.trunc(scaled)
    whole += np.trunc(np.float32(2) * (scaled - whole))
    out[:, :2] = _halves(scales)
    out[:, 2:] = whole.astype(np.int8).view(np.uint8)


_ENCODERS: dict[GGMLType, Callable[[Floats, Bytes], None]] = {
    GGMLType.F32: _plain("<f4"),
    GGMLType.F16: _plain("<f2"),
    GGMLType.BF16: _bf16,
    GGMLType.Q4_0: _q4_0,
    GGMLType.Q4_1: _q4_1,
    GGMLType.Q5_0: _q5_0,
    GGMLType.Q5_1: _q5_1,
    GGMLType.Q8_0: _q8_0,
    GGMLType.Q4_K: encode_q4_k,
    GGMLType.Q6_K: encode_q6_k,
}

# Fields of each type that are narrower than float32, which large inputs may overflow to infinity.
_SCALES: dict[GGMLType, tuple[str, tuple[int, ...]]] = {
    GGMLType.F16: ("<f2", (0,)),
    GGMLType.BF16: ("<u2", (0,)),
    GGMLType.Q4_0: ("<f2", (0,)),
    GGMLType.Q4_1: ("<f2", (0, 2)),
    GGMLType.Q5_0: ("<f2", (0,)),
    GGMLType.Q5_1: ("<f2", (0, 2)),
    GGMLType.Q8_0: ("<f2", (0,)),
    GGMLType.Q4_K: ("<f2", (0, 2)),
    GGMLType.Q6_K: ("<f2", (208,)),
}
