"""Metadata and tensors of a model file, which exists or is about to be written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from woolly.gguf.tensor import Tensor


class ModelDescription(Protocol):
    """Interface of an open file, or of a file to be written."""

    @property
    def path(self) -> Path:
        """Path of the file, for error messages."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata by key."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Names, types and shapes of the tensors, in file order."""
