"""Operations that turn checkpoint tensors into GGUF tensors: row permutations, transpositions, simple arithmetic.

Each op computes its output shape without data, so a file's layout is known before weights are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.errors import ModelError

Shape = tuple[int, ...]
Array = NDArray[Any]


def _same(shape: Shape) -> Shape:
    return shape


@dataclass(frozen=True)
class TensorOp:
    """Operation on a tensor."""

    apply: Callable[[Array], Array]
    shape: Callable[[Shape], Shape] = _same
    floats: bool = False  # needs numbers, not raw bits
    rows: bool = True  # moves complete rows only, so it also works on quantized rows
    columns: bool = False  # moves complete columns only


PLUS_ONE = TensorOp(lambda x: x + np.float32(1), floats=True)
MINUS_EXP = TensorOp(lambda x: -np.exp(x), floats=True)
# Axes of length 1, such as the middle axis of a convolution filter.
SQUEEZED = TensorOp(np.squeeze, lambda shape: tuple(n for n in shape if n != 1), rows=False)
SWAPPED = TensorOp(lambda x: x.swapaxes(-1, -2), lambda s: (*s[:-2], s[-1], s[-2]), rows=False)
TRANSPOSED = TensorOp(lambda x: x.T, lambda s: s[::-1], rows=False)


def reshaped(*shape: int) -> TensorOp:
    """Reshape; one length may be -1."""

    def made(old: Shape) -> Shape:
        known = math.prod(n for n in shape if n > 0)
        n = math.prod(old)
        if (-1 in shape and n % known) or (-1 not in shape and n != known):
            raise ModelError(f"a tensor of shape {old} cannot be reshaped to {shape}")
        return tuple(n // known if one < 0 else one for one in shape)

    return TensorOp(lambda x: x.reshape(made(x.shape)), made, rows=False)


def raised(by: float) -> TensorOp:
    """Add a constant."""
    return TensorOp(lambda x: x + np.float32(by), floats=True)


def normalized(axis: int, epsilon: float) -> TensorOp:
    """Divide by the L2 norm along an axis."""
    return TensorOp(lambda x: x / (np.linalg.norm(x, axis=axis, keepdims=True) + np.float32(epsilon)), floats=True)


def scaled(factor: Array | np.float32) -> TensorOp:
    """Multiply by a factor, or each row by its factor."""
    return TensorOp(lambda x: x * factor, floats=True)


def in_pairs(n_heads: int) -> TensorOp:
    """Reorder the rows of each head from NeoX to adjacent rotary pairs."""

    def apply(x: Array) -> Array:
        parts: Array = x.reshape(n_heads, 2, x.shape[0] // n_heads // 2, *x.shape[1:])
        turned: Array = parts.swapaxes(1, 2).reshape(x.shape)
        return turned

    return TensorOp(apply, _divisible(2 * n_heads, "heads"))


def _divisible(n: int, what: str, axis: int = 0) -> Callable[[Shape], Shape]:
    def check(shape: Shape) -> Shape:
        if n < 1 or shape[axis] % n:
            raise ModelError(f"a tensor of shape {shape} cannot be split evenly into {n} {what}")
        return shape

    return check


def one_of(index: int, n: int, axis: int = -2, *, interleaved: bool = False) -> TensorOp:
    """Take one of n equal parts along an axis, or every n-th item."""

    def apply(x: Array) -> Array:
        moved = np.moveaxis(x, axis, 0)
        size = moved.shape[0] // n
        part = moved[index::n] if interleaved else moved[index * size : (index + 1) * size]
        return np.moveaxis(part, 0, axis)

    def shape(old: Shape) -> Shape:
        if len(old) < -axis or old[axis] % n:
            raise ModelError(f"a tensor of shape {old} cannot be split into {n} equal parts")
        new = list(old)
        new[axis] //= n
        return tuple(new)

    return TensorOp(apply, shape, rows=axis != -1)


def picked(rows: NDArray[np.intp], whole: int) -> TensorOp:
    """Select rows of a matrix with `whole` rows, in the order of `rows`."""

    def shape(old: Shape) -> Shape:
        if not old or old[0] != whole:
            raise ModelError(f"expected a tensor of {whole} rows, found one of shape {old}")
        return (len(rows), *old[1:])

    return TensorOp(lambda x: x[rows], shape)


def rows_of_heads(n_groups: int, head: int, first: int = 0) -> TensorOp:
    """Reorder heads, after `first` rows, from grouped to interleaved: the first head of each group comes first."""

    def apply(x: Array) -> Array:
        tail = x[first:]
        parts = tail.reshape(n_groups, -1, head, *x.shape[1:]).swapaxes(0, 1).reshape(tail.shape)
        return np.concatenate([x[:first], parts]) if first else parts

    def shape(old: Shape) -> Shape:
        _divisible(n_groups * head, "rows of heads")((old[0] - first, *old[1:]))
        return old

    return TensorOp(apply, shape)


def columns_of_heads(n_groups: int, head: int) -> TensorOp:
    """Apply `rows_of_heads` to the columns of a matrix."""

    def apply(x: Array) -> Array:
        parts: Array = x.reshape(x.shape[0], n_groups, -1, head)
        turned: Array = parts.swapaxes(1, 2).reshape(x.shape)
        return turned

    return TensorOp(apply, _divisible(n_groups * head, "columns of heads", -1), rows=False, columns=True)
