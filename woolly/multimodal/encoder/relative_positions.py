"""Attention with relative position embeddings, computed with extra rotary dimensions of q and k.

A table of vectors by distance is a Fourier series, and a sinusoid of a distance is a product of sinusoids of two
positions. Rope therefore rotates the coefficients of q by its position, and a constant vector by k's position. Heads of
q and k become wider, and attention needs no table.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from woolly.gguf import Tensor
from woolly.multimodal.encoder.derived_tensors import f32_tensor
from woolly.multimodal.encoder.exact_math import product, sines
from woolly.plan import Handle, Rope, Tracer

Float64 = npt.NDArray[np.float64]

_STILL = np.float32(1e30)  # divisor of the constant term; its angle stays 0
_STEPS = 2  # Newton steps; an error of 4e-5 becomes 1e-18


def _divisors(reach: int) -> npt.NDArray[np.float32]:
    """Return the rope divisors of `reach` sinusoids over 2 * reach - 1 distances."""
    steps = 2 * np.pi * np.arange(1, reach) / (2 * reach - 1)
    return np.append(_STILL, 1.0 / steps).astype(np.float32)


def rotation_tensors(name: str, reach: int) -> dict[str, Tensor]:
    """Return the unrotated extra columns of k and the rope divisors of a stage."""
    ones = np.repeat(np.array([1.0, 0.0]), reach)
    return {
        f"{name}.weight": f32_tensor(f"{name}.weight", ones),
        f"{name}.divisors": f32_tensor(f"{name}.divisors", _divisors(reach)),
    }


def fourier_tensors(name: str, by_distance: Float64, heads: int) -> dict[str, Tensor]:
    """Return `name.weight`, which maps q of each head to its rotary coefficients.

    `by_distance` is [heads, distances, head_dim], or [1, ...] for all heads. Distances run from the farthest row after
    q to the farthest row before it. Frequencies are rounded to f32, so the coefficients are solved for instead of
    transformed.
    """
    reach = (by_distance.shape[1] + 1) // 2
    found = product(_solved(reach), by_distance.swapaxes(0, 1)).swapaxes(0, 1)
    found = np.insert(found, reach, 0.0, axis=1)
    return {f"{name}.weight": f32_tensor(f"{name}.weight", np.broadcast_to(found, (heads, *found.shape[1:])))}


@lru_cache(maxsize=4)
def _solved(reach: int) -> Float64:
    """Return the matrix that maps vectors by distance to Fourier coefficients."""
    sine, cosine = sines(np.arange(1 - reach, reach)[:, None] / _divisors(reach).astype(np.float64))
    # The constant term has no sine, so the number of unknowns equals the number of distances.
    waves = np.concatenate([cosine, -sine[:, 1:]], axis=1)
    # Start from the inverse of the exact DFT; each Newton step squares the error.
    found: Float64 = waves.T * np.append(1.0, np.full(2 * reach - 2, 2.0))[:, None] / (2 * reach - 1)
    for _ in range(_STEPS):
        found = found + product(np.eye(2 * reach - 1) - product(found, waves), found)
    return found


class RelativeAttention:
    """Relative attention of a stage. The rotary columns of k (tensor `name`) are computed once for all layers."""

    def __init__(self, p: Tracer, name: str, heads: int, reach: int) -> None:
        self._p, self._name, self._heads, self._reach = p, f"/{name}", heads, reach
        self._rope = Rope(2 * reach, 2 * reach, 1.0, "neox")
        self._keys: Handle | None = None

    def attention(self, q: Handle, k: Handle, v: Handle, name: str, *, scale: float, softcap: float = 0.0) -> Handle:
        """Build attention with scores q·k + q·r(distance). `name` is the tensor from `fourier_tensors`."""
        p, heads, reach = self._p, self._heads, self._reach
        waves = p.per_head_linear(q, name, heads=heads, width=2 * reach)
        if self._keys is None:
            begun = p.slice(waves, first=0, width=2 * reach) * 0.0 + p.vector(self._name)
            self._keys = p.rope(begun, self._rope, f"{self._name}.divisors")
        rotated = p.rope(waves, self._rope, f"{self._name}.divisors")
        q, k = p.concat(q, rotated, heads=heads), p.concat(k, self._keys, heads=heads, shared=True)
        return p.attention(q, k, v, head_dim=q.width // heads, scale=scale, mask="block", softcap=softcap)
