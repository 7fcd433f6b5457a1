"""Described: what a model's file says about itself, whether it is written already or not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from woolly.gguf.tensor import Tensor


class Described(Protocol):
    """Metadata and tensors. An open file is one, and a file that is about to be written."""

    @property
    def path(self) -> Path:
        """Path of the file, for error messages."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values by key."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Names, types and shapes, in file order."""
