"""Matrix products with limits of Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from woolly.gguf import Tensor
from woolly.plan import Handle, Tracer

_BOUNDS = ("input_min", "input_max", "output_min", "output_max")
_F32_MAX = float(np.finfo(np.float32).max)


def clipped(p: Tracer, x: Handle, name: str, tensors: Mapping[str, Tensor]) -> Handle:
    """Build a matrix product with input and output clamped to limits from the file."""
    low, high, least, most = (
        float(tensors[f"{name}.{one}"].dequantize().reshape(-1)[0]) if f"{name}.{one}" in tensors else sign * _F32_MAX
        for one, sign in zip(_BOUNDS, (-1, 1, -1, 1), strict=True)
    )
    rest = name.rpartition(".")[2]
    p.skip(*(f"{rest}.{one}" for one in _BOUNDS))
    if max(-low, high) < _F32_MAX:
        x = p.clip(x, max(low, -_F32_MAX), min(high, _F32_MAX))
    y = p.linear(x, rest, width=p.rows(rest))
    return p.clip(y, max(least, -_F32_MAX), min(most, _F32_MAX)) if max(-least, most) < _F32_MAX else y
