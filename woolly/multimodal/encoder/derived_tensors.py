"""Derived tensors of encoders: transposed, reshaped or computed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from woolly.gguf import MemoryMap, Tensor
from woolly.quant import GGMLType


def f32_tensor(name: str, array: npt.NDArray[np.floating]) -> Tensor:
    """Return an array as an f32 tensor."""
    values = np.ascontiguousarray(array, np.float32)
    return Tensor(name, GGMLType.F32, values.shape, 0, MemoryMap(name, values))


def transposed(tensor: Tensor) -> Tensor:
    """Return a transposed matrix."""
    return f32_tensor(tensor.name, tensor.dequantize().T)


def as_matrix(tensor: Tensor) -> Tensor:
    """Return a filter as a matrix [outputs, inputs]."""
    return replace(tensor, shape=(tensor.shape[0], math.prod(tensor.shape[1:])))


def select_rows(tensor: Tensor, rows: npt.NDArray[np.integer]) -> Tensor:
    """Return the given rows of a tensor, or elements of a vector, in order."""
    if len(tensor.shape) == 1:
        return f32_tensor(tensor.name, tensor.dequantize()[rows])
    data = np.ascontiguousarray(tensor.data[rows])
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), offset=0, file=MemoryMap(tensor.name, data))
