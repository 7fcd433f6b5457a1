"""The State: keys and values of past tokens, in pages shared by all sequences."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.plan import CacheLayer, Plan

__all__ = ["PAGE_SIZE", "State", "pages_for"]

# Tokens per page: small enough that little is wasted at a sequence's end, large enough to stream.
PAGE_SIZE = 32


def pages_for(n_tokens: int) -> int:
    """How many pages hold so many tokens."""
    return -(-n_tokens // PAGE_SIZE)


class State:
    """K and V of every layer. Memory is taken from the system page by page as it is first written."""

    def __init__(self, plan: Plan, n_pages: int, dtype: npt.DTypeLike = np.float32) -> None:
        self.n_pages = n_pages
        self.layers: tuple[CacheLayer, ...] = plan.cache
        # [n_pages, PAGE_SIZE, n_kv_heads, head_dim] for each layer
        self.k = [np.zeros((n_pages, PAGE_SIZE, c.n_kv_heads, c.head_dim), dtype) for c in plan.cache]
        self.v = [np.zeros((n_pages, PAGE_SIZE, c.n_kv_heads, c.head_dim), dtype) for c in plan.cache]

    @property
    def n_bytes(self) -> int:
        """Size of all pages, written or not."""
        return sum(a.nbytes for a in (*self.k, *self.v))
