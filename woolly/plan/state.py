"""State of a plan between runs: KV cache entries and recurrent slots, named by their index in `Plan.state`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Paged:
    """Keys and values of every token, in pages."""

    heads: int
    k_dim: int  # columns of a head of K
    v_dim: int
    v_in_k: bool = False  # V is the first v_dim columns of K and is not stored
    window: int = 0  # latest positions that a step may read; 0: all

    @property
    def width(self) -> int:
        """Elements per token."""
        return self.heads * (self.k_dim if self.v_in_k else self.k_dim + self.v_dim)


@dataclass(frozen=True)
class Slot:
    """Fixed-size recurrent state per sequence, in f32."""

    numbers: int
