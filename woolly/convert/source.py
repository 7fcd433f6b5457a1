"""Source: a tensor of a checkpoint, independent of its storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from woolly.convert.safetensors import StoredTensor
from woolly.errors import ModelError
from woolly.quant import GGMLType

_TYPES = {"F32": GGMLType.F32, "F16": GGMLType.F16, "BF16": GGMLType.BF16}


class Source(Protocol):
    """A tensor of a checkpoint."""

    @property
    def name(self) -> str:
        """Name in the checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as a tuple of lengths."""

    @property
    def type(self) -> GGMLType:
        """Type of `array`: F32, F16, BF16 (as 16-bit integers), or rows of blocks (as bytes)."""

    def array(self) -> NDArray[Any]:
        """Return the values as stored in `type`."""

    def floats(self) -> NDArray[np.float32]:
        """Return the values as F32."""


@dataclass(frozen=True)
class Plain:
    """An unquantized tensor of a file."""

    stored: StoredTensor

    @property
    def name(self) -> str:
        """Name in the checkpoint."""
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return self.stored.shape

    @property
    def type(self) -> GGMLType:
        """F16 and BF16 are kept, other types become F32."""
        return _TYPES.get(self.stored.dtype, GGMLType.F32)

    def array(self) -> NDArray[Any]:
        """Return a view into the file if GGUF has the type."""
        return self.stored.array() if self.stored.dtype in _TYPES else self.floats()

    def floats(self) -> NDArray[np.float32]:
        """Return numbers of any type as float32."""
        array, dtype = self.stored.array(), self.stored.dtype
        if dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        if dtype.startswith("F8_"):
            raise ModelError(
                f"tensor {self.name!r:.90} is {dtype} without a scale, and config.json names no quantization"
            )
        if dtype[0] == "F":
            return array.astype(np.float32)
        raise ModelError(f"tensor {self.name!r:.90} holds {dtype}, but numbers (F32, F16, BF16) were expected")


@dataclass(frozen=True)
class Computed:
    """A lazily computed tensor."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    make: Callable[[], NDArray[Any]]  # as stored in `type`

    def array(self) -> NDArray[Any]:
        """Return the values, or rows of blocks."""
        return self.make()

    def floats(self) -> NDArray[np.float32]:
        """Return the values as F32."""
        array = self.make()
        if self.type is GGMLType.BF16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        if self.type.block_size > 1:
            raise ModelError(
                f"tensor {self.name!r:.90} is quantized to {self.type.name}, but this architecture computes with its"
                " numbers before they are stored"
            )
        return array.astype(np.float32)
