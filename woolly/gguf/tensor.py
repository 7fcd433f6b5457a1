"""Tensor of a GGUF file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from woolly.errors import UnsupportedError
from woolly.gguf.cursor import quote
from woolly.quant.decode import can_dequantize, dequantize
from woolly.quant.types import GGMLType

if TYPE_CHECKING:
    from woolly.gguf.mapped_file import FileMap


@dataclass(frozen=True, slots=True)
class Tensor:
    """Description of a tensor, and access to its bytes."""

    name: str
    type: GGMLType
    shape: tuple[int, ...]  # NumPy order, outermost first (GGUF has the reverse order)
    offset: int  # offset of the data in its file
    file: FileMap = field(repr=False, compare=False)

    @property
    def path(self) -> Path:
        """File that contains the tensor."""
        return self.file.path

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Size of the data in bytes, without padding."""
        return self.n_elements // self.type.block_size * self.type.type_size

    @property
    def data(self) -> NDArray[np.uint8]:
        """Data of the tensor: a read-only view into the file, of shape (*shape[:-1], bytes per row)."""
        flat = self.file.bytes[self.offset : self.offset + self.n_bytes]
        return flat.reshape(*self.shape[:-1], self.type.row_bytes(self.shape[-1] if self.shape else 1))

    def dequantize(self, rows: slice | NDArray[np.integer] | list[int] | None = None) -> NDArray[np.float32]:
        """Dequantize all values, or some rows of the first axis, into a new array."""
        if not can_dequantize(self.type):
            supported = ", ".join(type.name for type in GGMLType if can_dequantize(type))
            raise UnsupportedError(
                f"tensor {quote(self.name)} is {self.type.name}, which is not supported yet; supported: {supported}"
            )
        data = self.data
        if rows is None:
            return dequantize(data, self.type).reshape(self.shape)
        if len(self.shape) < 2:
            # The only axis is split into blocks, so rows can only be selected after decoding.
            picked: NDArray[np.float32] = dequantize(data, self.type)[rows].copy()
            return picked
        return dequantize(data[rows], self.type)
