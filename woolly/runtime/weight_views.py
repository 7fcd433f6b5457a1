"""Views: tensors of a file, and ranges of their rows by names such as "blk.0.attn_qkv.weight[0:64]"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import ModelError
from woolly.quant.decode import dequantize

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan, Weight
    from woolly.quant import GGMLType


@dataclass(frozen=True)
class RowView:
    """Rows [first, last) of a matrix or of each expert's matrix, or elements of a bias."""

    tensor: Tensor
    first: int
    last: int

    @property
    def type(self) -> GGMLType:
        """Type of the tensor."""
        return self.tensor.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor, reduced to the rows of the range. In a bias with two axes, experts come first."""
        shape = list(self.tensor.shape)
        shape[self._axis] = len(range(shape[self._axis])[self.first : self.last])
        return tuple(shape)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes of the rows, as views into the file."""
        return self.tensor.data[self._rows]

    def dequantize(self, rows: npt.NDArray[np.integer] | None = None) -> npt.NDArray[np.float32]:
        """Return the values in f32, optionally only some rows of the first axis."""
        if self._axis == len(self.tensor.shape) - 1:
            values: npt.NDArray[np.float32] = self.tensor.dequantize()[self._rows]
            return values if rows is None else values[rows]
        return dequantize(np.ascontiguousarray(self.data if rows is None else self.data[rows]), self.type)

    @property
    def _axis(self) -> int:
        if self.tensor.name.endswith(".bias"):
            return len(self.tensor.shape) - 1
        return max(0, len(self.tensor.shape) - 2)

    @property
    def _rows(self) -> tuple[slice, ...]:
        return (*(slice(None),) * self._axis, slice(self.first, self.last))


class WeightViews(Mapping[str, "Tensor | RowView"]):
    """Tensors of a file by name, and row ranges as `name[first:last]`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor | RowView:
        range_ = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name) if name.endswith("]") else None
        if range_ is None:
            return self._tensors[name]
        return RowView(self._tensors[range_[1]], int(range_[2]), int(range_[3]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def check_weights(plan: Plan, views: WeightViews) -> None:
    """Raise ModelError unless each tensor has the shape and type that the plan's steps expect.

    Buffers have the sizes of the plan. Kernels use those of the tensor and would write past the end of a buffer.
    """
    for step in plan.steps:
        rows = (*step.kind.matrices, *step.kind.tables)
        for role, weight in zip(step.roles, step.weights, strict=True):
            tensor = views[weight.name]
            if tensor.type != weight.type or not _has_shape(tensor.shape, weight, role in rows):
                raise ModelError(
                    f"tensor {weight.name!r} is {tensor.type.name} {tensor.shape}, where the plan's step"
                    f" ({step.source}) has {weight.type.name} {weight.shape}; open the model with the file that it was"
                    " planned for"
                )


def _has_shape(shape: tuple[int, ...], weight: Weight, is_matrix: bool) -> bool:
    if not is_matrix:  # flat vector: files differ in the axis order of convolutions
        return math.prod(shape) == math.prod(weight.shape)
    n_axes = max(len(shape), len(weight.shape))  # a matrix of one row may be a vector in the file
    return (1,) * (n_axes - len(shape)) + shape == (1,) * (n_axes - len(weight.shape)) + weight.shape
