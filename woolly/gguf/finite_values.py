"""Search for values that are not finite in the tensors of a file."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from woolly.gguf.reader import GGUFFile
from woolly.gguf.tensor import Tensor
from woolly.quant import can_dequantize

_MAX_VALUES = 1 << 24  # dequantized together: 64 MB


def count_not_finite(
    file: GGUFFile, report: Callable[[int, int], None] | None = None
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the tensors with NaN or infinite values and their number, and the tensors of types that are not read.

    `report` is called with the bytes read so far and in total.
    """
    found: dict[str, int] = {}
    skipped: list[str] = []
    total = sum(tensor.n_bytes for tensor in file.tensors.values())
    done = 0
    for name, tensor in file.tensors.items():
        if not can_dequantize(tensor.type):
            skipped.append(name)
        elif n := _count(tensor):
            found[name] = n
        done += tensor.n_bytes
        if report is not None:
            report(done, total)
    return found, tuple(skipped)


def _count(tensor: Tensor) -> int:
    if len(tensor.shape) < 2:
        return int(np.count_nonzero(~np.isfinite(tensor.dequantize())))
    per_row = max(1, tensor.n_elements // max(1, tensor.shape[0]))
    step = max(1, _MAX_VALUES // per_row)
    rows = (tensor.dequantize(slice(first, first + step)) for first in range(0, tensor.shape[0], step))
    return sum(int(np.count_nonzero(~np.isfinite(part))) for part in rows)
