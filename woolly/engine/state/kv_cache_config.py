"""KVCacheConfig: numbers of pages, slots and window pages of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.cache.pages import PagePool
from woolly.cache.sliding_window import WindowPool
from woolly.cache.slots import SlotPool
from woolly.engine.state.visible_pages import VisiblePages
from woolly.errors import RequestError
from woolly.runtime import PAGE_SIZE, Program, State, pages_for

if TYPE_CHECKING:
    from woolly.plan import Plan

# Pools take about 50 bytes per page, even for models without paged entries: 210 MB at this maximum.
_MAX_TOKENS = PAGE_SIZE << 22


@dataclass(frozen=True)
class KVCacheConfig:
    """Sizes of the cache, which all requests share."""

    ctx: int  # tokens per request
    kv_tokens: int | None  # tokens of all requests; None: one context
    n_pages: int
    n_slots: int  # slots of recurrent state
    windows: Sequence[int]  # pages per window of `Plan.windows`

    @classmethod
    def of(
        cls,
        program: Program,
        ctx: int,
        kv_tokens: int | None,
        *,
        chunk: int,
        max_running: int,
        n_snapshots: int,
        n_drafts: int,
    ) -> KVCacheConfig:
        """Return the sizes for `max_running` requests with up to `n_drafts` draft tokens per step."""
        if kv_tokens is not None and kv_tokens < ctx:
            raise RequestError(
                f"kv_tokens is {kv_tokens}; expected at least ctx, {ctx}",
                field="kv_tokens",
            )
        n_pages = pages_for(ctx if kv_tokens is None else kv_tokens)
        # Each running request reads one slot and writes another; so does `Engine.logits`.
        n_slots = 2 * min(max_running, chunk) + 2 + n_snapshots if program.plan.slots else 0
        # Rows recomputed after rejected drafts can double the rows of a step.
        n_rows = 2 * chunk if n_slots and n_drafts else chunk
        windows = [
            WindowPool.size(window, max_running, n_rows, n_pages, n_drafts or 1) for window in program.plan.windows
        ]
        return cls(ctx, kv_tokens, n_pages, n_slots, windows)

    def new_state(self, program: Program) -> State:
        """Allocate the cache. Call this before `new_pools`: a backend rejects a cache larger than its memory."""
        state = program.new_state(self.n_pages, self.n_slots, self.windows)
        for name, n_tokens in (("ctx", self.ctx), ("kv_tokens", self.kv_tokens or 0)):
            if n_tokens > _MAX_TOKENS:
                raise RequestError(f"{name} is {n_tokens}; the maximum is {_MAX_TOKENS}", field=name)
        return state

    def new_pools(self, plan: Plan) -> tuple[PagePool, SlotPool, VisiblePages]:
        """Return the pools of pages and slots, and the visible pages of the windows."""
        windows = [
            WindowPool(window, size, self.n_pages) if size < self.n_pages else None
            for window, size in zip(plan.windows, self.windows, strict=True)
        ]
        pages = PagePool(self.n_pages, self.n_slots > 0, [pool for pool in windows if pool is not None])
        return pages, SlotPool(self.n_slots, pages.index), VisiblePages(windows)
