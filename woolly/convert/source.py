"""Source: tensor of a checkpoint, independent of its storage format."""

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


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to BF16, half to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


class Source(Protocol):
    """Tensor of a checkpoint."""

    @property
    def name(self) -> str:
        """Name in the checkpoint."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as a tuple of integers."""

    @property
    def type(self) -> GGMLType:
        """Type of `array`: F32, F16, BF16 (as 16-bit integers), or rows of quantized blocks (as bytes)."""

    def array(self) -> NDArray[Any]:
        """Return the data in the format of `type`."""

    def floats(self) -> NDArray[np.float32]:
        """Return the values as F32."""


@dataclass(frozen=True)
class Plain:
    """Unquantized tensor of a file."""

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
        """F16 and BF16 stay as they are; other types become F32."""
        return _TYPES.get(self.stored.dtype, GGMLType.F32)

    def array(self) -> NDArray[Any]:
        """Return a view into the file if GGUF supports the type."""
        return self.stored.array() if self.stored.dtype in _TYPES else self.floats()

    def floats(self) -> NDArray[np.float32]:
        """Return the values as F32."""
        array, dtype = self.stored.array(), self.stored.dtype
        if dtype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        if dtype.startswith("F8_"):
            raise ModelError(
                f"tensor {self.name!r:.90} is {dtype} without a scale, and config.json has no quantization method"
            )
        if dtype[0] == "F":
            return array.astype(np.float32)
        raise ModelError(f"tensor {self.name!r:.90} has type {dtype}; expected F32, F16 or BF16")


@dataclass(frozen=True)
class Computed:
    """Lazily computed tensor."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    make: Callable[[], NDArray[Any]]  # returns the data in the format of `type`
    exact: Callable[[], NDArray[np.float32]] | None = None  # the values, if `make` rounds them

    @classmethod
    def rounded(
        cls, name: str, shape: tuple[int, ...], type: GGMLType, values: Callable[[], NDArray[np.float32]]
    ) -> Computed:
        """Return a tensor of F32 values, which become BF16, F16 or F32; other types are made from the exact values."""
        if type is GGMLType.F32:
            return cls(name, shape, type, values)
        make = {GGMLType.F16: lambda: values().astype(np.float16), GGMLType.BF16: lambda: to_bf16(values())}[type]
        return cls(name, shape, type, make, values)

    def array(self) -> NDArray[Any]:
        """Return the values, or rows of quantized blocks."""
        return self.make()

    def floats(self) -> NDArray[np.float32]:
        """Return the values as F32."""
        if self.exact is not None:
            return self.exact()
        array = self.make()
        if self.type is GGMLType.BF16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        if self.type.block_size > 1:
            raise ModelError(
                f"tensor {self.name!r:.90} is quantized to {self.type.name}, but conversion of this architecture"
                " changes its values"
            )
        return array.astype(np.float32)
