"""Tensors that a tower reads in another form than its file has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from woolly.gguf import MemoryMap, Tensor
from woolly.quant import GGMLType


def made(name: str, array: npt.NDArray[np.floating]) -> Tensor:
    """Returns a tensor of f32 that no file has."""
    values = np.ascontiguousarray(array, np.float32)
    return Tensor(name, GGMLType.F32, values.shape, 0, MemoryMap(name, values))


def transposed(tensor: Tensor) -> Tensor:
    """Returns a matrix with its rows as columns."""
    return made(tensor.name, tensor.dequantize().T)


def as_matrix(tensor: Tensor) -> Tensor:
    """Returns a filter as a matrix with a row for each output."""
    return replace(tensor, shape=(tensor.shape[0], math.prod(tensor.shape[1:])))


def picked(tensor: Tensor, rows: npt.NDArray[np.integer]) -> Tensor:
    """Returns these rows of a tensor in this order; of a vector, its elements."""
    if len(tensor.shape) == 1:
        return made(tensor.name, tensor.dequantize()[rows])
    data = np.ascontiguousarray(tensor.data[rows])
    return replace(tensor, shape=(len(rows), *tensor.shape[1:]), offset=0, file=MemoryMap(tensor.name, data))
