"""DiskTier: loads pages from disk while other requests run, and writes reused pages."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from woolly.cache.page_folder import PageFolder
from woolly.cache.page_writer import PageWriter
from woolly.cache.pages import PagePool
from woolly.cache.sliding_window import WindowPool
from woolly.cache.slots import SlotPool
from woolly.runtime import PAGE_SIZE, PortableState

Bytes = npt.NDArray[np.uint8]

_THREADS = 2
_PER_STEP = 4  # maximum pages copied per step
_PACE = 0.3  # weight of the latest observation in a moving average
_OVERHEAD = 0.002  # read latency in seconds
_LASTING = 30 * 86_400  # seconds that unused system prompts outlive other pages
_FLUSHING = 4.0  # maximum seconds for writing remaining pages on close


@dataclass(frozen=True)
class DiskStats:
    """Counters of the disk tier since the start."""

    n_files: int
    n_bytes: int  # size of all files in the folder
    read_tokens: int
    written_bytes: int
    n_damaged: int  # corrupt files, which were removed
    disk_rate: float  # measured read rate in bytes per second
    compute_rate: float  # measured prefill rate in tokens per second; 0 if not measured yet
    refusal: str | None  # reason for not writing the last page


@dataclass
class _Load:
    """Pages of a request that are loading from disk."""

    digests: list[bytes]  # all pages up to the last loading page
    tokens: Sequence[int]
    root: bytes
    pages: Mapping[tuple[int, int], Future[Bytes | None]]  # keyed by table and page index
    state: Future[Bytes | None] | None = None
    n_shared: int = 0  # number of leading pages of a system prompt
    started: float = field(default_factory=time.monotonic)

    @property
    def is_done(self) -> bool:
        return all(one.done() for one in self.pages.values()) and (self.state is None or self.state.done())

    @property
    def coming(self) -> set[bytes]:
        return {self.digests[i] for _, i in self.pages}


class DiskTier:
    """Disk tier below the prefix index, which indexes loaded pages.

    A request whose next pages are on disk waits while two threads read them, if the measured rates predict that reading
    is faster than computing. Pages are written when they are requested again, and all pages when the engine closes.
    System prompts are only protected from their second use on: otherwise a prompt with the current time, or each row of
    a batch, would evict used pages. The engine thread does everything except file I/O.

    Sliding-window entries of a page have a separate file, because the cache only contains window entries before likely
    branching points. Only files within a request's windows are read.
    """

    def __init__(
        self,
        folder: PageFolder,
        state: PortableState,
        pages: PagePool,
        slots: SlotPool,
        compute_rate: float = 0.0,
        windows: Sequence[WindowPool | None] = (),
    ) -> None:
        """`compute_rate` is the initial prefill rate in tokens per second; 0 to measure it with the first prompts.

        `windows` has a pool for each window of `Plan.windows`, or None if the window cache has all pages.
        """
        self.folder = folder
        self._state = state
        self._pages = pages
        self._slots = slots
        self._windows = windows
        self._kinds = ("page", *(f"window{i}" for i in range(len(windows))))  # kind of each table
        self._sizes = state.page_sizes
        self._disk_rate = folder.measured_rate()
        self._compute_rate = compute_rate
        self._loads: dict[Hashable, _Load] = {}
        self._coming: set[bytes] = set()
        self._wanted: OrderedDict[bytes, int] = OrderedDict()  # depth of each page to write
        self._lasting: set[bytes] = set()  # system prompt pages whose files this process has ranked
        self._arrived = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="woolly-disk")
        self._writer = PageWriter(folder, self._pool)
        self._erasures: list[Future[None]] = []
        self._read_tokens = 0

    @property
    def is_loading(self) -> bool:
        """True while pages are loading."""
        return bool(self._loads)

    def stats(self) -> DiskStats:
        """Return the counters since the start."""
        folder = self.folder
        return DiskStats(
            len(folder),
            folder.n_bytes,
            self._read_tokens,
            self._writer.written_bytes,
            folder.n_damaged,
            self._disk_rate,
            self._compute_rate,
            folder.refusal,
        )

    def observe(self, n_rows: int, seconds: float) -> None:
        """Update the prefill rate with a step."""
        if n_rows >= PAGE_SIZE and seconds > 0:
            rate = n_rows / seconds
            self._compute_rate += (rate - self._compute_rate) * (_PACE if self._compute_rate else 1.0)

    def is_faster_than_recompute(self, n_bytes: int, n_tokens: int) -> bool:
        """Return True if reading is expected to be faster than computing.

        Return True if only the compute rate is unknown, and False if the read rate is unknown.
        """
        if not self._disk_rate or not self._compute_rate:
            return bool(self._disk_rate)
        return _OVERHEAD + n_bytes / self._disk_rate < n_tokens / self._compute_rate

    def fetch(
        self,
        user: Hashable,
        tokens: Sequence[int],
        digests: Sequence[bytes],
        root: bytes,
        n_spare: int,
        n_shared: int = 0,
    ) -> bool:
        """Start reading up to `n_spare` next pages of a request; return False if reading does not pay off.

        `settle` completes the load. The first `n_shared` pages belong to a system prompt.
        """
        index = self._pages.index
        found, known = len(index.find(digests)), index.known(digests)
        end = len(known)
        whole = [self._kinds[table] for table in self._whole]
        while end < len(digests) and end - len(known) < n_spare:
            if not all(self.folder.has(kind, digests[end]) for kind in whole):
                break
            end += 1
        end = self._last_boundary(digests, known, found, end)
        if end <= found:
            return False
        its = list(digests[:end])
        wanted = self._absent(known, end)
        needs_slot = index.needs_state and index.state_after(its[-1]) is None
        n_bytes = sum(self._sizes[table] for table, _ in wanted) + (self._state.slot_bytes if needs_slot else 0)
        if not self.is_faster_than_recompute(n_bytes, (end - found) * PAGE_SIZE):
            return False
        reads = {(table, i): self._submit_read(self._kinds[table], its[i]) for table, i in wanted}
        state = self._submit_read("state", its[-1]) if needs_slot else None
        self._loads[user] = load = _Load(its, tokens, root, reads, state, n_shared)
        self._coming |= load.coming
        return True

    def is_fetching(self, user: Hashable, digests: Sequence[bytes]) -> bool:
        """Return True if pages of a request, or pages that it shares with another request, are loading."""
        return user in self._loads or any(digest in self._coming for digest in digests)

    def settle(self, n_kept: int) -> None:
        """Add loaded pages to the index, leaving `n_kept` free pages for running requests."""
        self._arrived.clear()
        for user in [user for user, load in self._loads.items() if load.is_done]:
            load = self._loads.pop(user)
            self._coming -= load.coming
            self._take_in(load, n_kept)

    def wait(self, seconds: float) -> None:
        """Wait until a read is complete."""
        self._arrived.wait(seconds)

    def forget(self, user: Hashable) -> None:
        """Drop the load of a request."""
        load = self._loads.pop(user, None)
        if load is not None:
            self._coming -= load.coming

    def want(self, digests: Sequence[bytes], first: int = 0, n_shared: int = 0) -> None:
        """Queue reused pages for writing; `first` is the number of preceding pages.

        The first `n_shared` pages of the prompt belong to a system prompt and are retained a month longer than others.
        """
        for depth, digest in enumerate(digests, first):
            if not self.folder.has("page", digest) or self._unwritten(digest):
                rank = _rank(depth, n_shared)
                self._wanted[digest] = min(rank, self._wanted.get(digest, rank))
            elif depth < n_shared and digest not in self._lasting:
                self._lasting.add(digest)  # a process that closes ranks the page lower
                self._touch(digest, _rank(depth, n_shared))

    def erase(self, digests: Sequence[bytes]) -> None:
        """Remove pages and states from disk and from the write queue, after writes in progress."""
        for digest in digests:
            self._wanted.pop(digest, None)
            self._lasting.discard(digest)
            self._erasures = [one for one in self._erasures if not one.done()]
            kinds = (*self._kinds, "state")
            self._erasures += [self._pool.submit(self.folder.erase, kind, digest) for kind in kinds]

    def work(self) -> None:
        """Copy some queued pages for writing, as long as the disk keeps up."""
        for _ in range(_PER_STEP):
            if not self._wanted or self._writer.is_full:
                return
            digest, depth = self._wanted.popitem(last=False)
            self._copy(digest, depth)

    def flush(self) -> None:
        """Write all pages and states that are not on disk, latest prompts first, within a time limit."""
        end = time.monotonic() + _FLUSHING
        wait(self._erasures)  # all of them, regardless of size
        self.folder.look()
        index = self._pages.index
        for digest, depth in index.stored():
            while self._writer.is_full and time.monotonic() < end:
                time.sleep(0.002)
            if time.monotonic() > end:
                break
            self._copy(digest, self._wanted.get(digest, depth))
        while not self._writer.is_idle and time.monotonic() < end:
            time.sleep(0.002)
        self._pool.shutdown(wait=self._writer.is_idle, cancel_futures=True)  # do not wait for a hanging disk

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _has_state(self, digest: bytes) -> bool:
        return self._pages.index.state_after(digest) is not None or self.folder.has("state", digest)

    @property
    def _whole(self) -> list[int]:
        """Tables that have all indexed pages: full attention, and windows with room for all pages."""
        return [0, *(table for table, pool in enumerate(self._windows, 1) if pool is None)]

    def _last_boundary(self, digests: Sequence[bytes], known: Sequence[int], found: int, end: int) -> int:
        """Return the last page count up to `end` at which a request can continue with cached or stored pages.

        Return `found` if there is none. `known` are the cached pages.
        """
        before = -1
        while end > found and end != before:
            before = end
            while self._pages.index.needs_state and end > found and not self._has_state(digests[end - 1]):
                end -= 1
            for pool, kind in zip(self._windows, self._kinds[1:], strict=True):
                i = end - 1
                while pool is not None and end > found and i >= pool.first_seen(end * PAGE_SIZE):
                    is_cached = i < len(known) and pool.table[known[i]] >= 0
                    if not is_cached and not self.folder.has(kind, digests[i]):
                        end = i  # the window of every later boundary has a missing page
                    i -= 1
        return end

    def _absent(self, known: Sequence[int], end: int) -> list[tuple[int, int]]:
        """Return (table, page index) of each uncached page that a request needs to continue after `end` pages."""
        out = [(table, i) for table in self._whole for i in range(len(known), end)]
        for table, pool in enumerate(self._windows, 1):
            if pool is not None:
                seen = range(pool.first_seen(end * PAGE_SIZE), end)
                out += [(table, i) for i in seen if i >= len(known) or pool.table[known[i]] < 0]
        return out

    def _submit_read(self, kind: str, digest: bytes) -> Future[Bytes | None]:
        future = self._pool.submit(self.folder.read, kind, digest)
        future.add_done_callback(lambda _: self._arrived.set())
        return future

    def _take_in(self, load: _Load, n_kept: int) -> None:
        """Copy the pages of a load into the cache, up to the first unreadable page."""
        data = {key: self._whole_data(key[0], future.result()) for key, future in load.pages.items()}
        numbers = [i for table, i in data if table == 0]
        taken: list[int] = []
        for i in numbers:
            own = {table: data[table, i] for table in self._whole}
            if any(one is None for one in own.values()) or self._pages.n_free <= n_kept + 1:
                break
            (page,) = self._pages.take(1)
            for pool in self._windows:
                if pool is not None:
                    pool.drop(page)  # entries of the page's previous content
            for table, one in own.items():
                if one is not None:
                    self._state.write_page(page, one, table)
            parent = load.digests[i - 1] if i else load.root
            tokens = load.tokens[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
            self._pages.publish(page, parent, load.digests[i], tokens)
            taken.append(page)
        self._take_windows(load, data)
        self._pages.give_back(taken)
        for i in sorted({i for _, i in data}):
            self._touch(load.digests[i], _rank(i, load.n_shared))
        self._read_tokens += len(taken) * PAGE_SIZE
        if load.state is not None and len(taken) == len(numbers):
            self._take_state(load.digests[-1], load.state.result())
        if n_bytes := sum(len(one) for one in data.values() if one is not None):
            rate = n_bytes / max(1e-6, time.monotonic() - load.started)
            self._disk_rate += _PACE * (rate - self._disk_rate)

    def _whole_data(self, table: int, data: Bytes | None) -> Bytes | None:
        return data if data is not None and len(data) == self._sizes[table] else None

    def _take_windows(self, load: _Load, data: Mapping[tuple[int, int], Bytes | None]) -> None:
        """Copy window entries of indexed pages into the cache."""
        for waiting in (*self._loads.values(), load):
            for windows in filter(None, self._windows):  # cached entries that pending loads rely on are evicted last
                windows.touch([self._pages.index.page_of(one) for one in waiting.digests])
        for (table, i), one in data.items():
            pool = self._windows[table - 1] if table else None
            page = self._pages.index.page_of(load.digests[i])
            if pool and page is not None and one is not None and (own := pool.put(page)) is not None:
                self._state.write_page(own, one, table)

    def _touch(self, digest: bytes, depth: int) -> None:
        for kind in self._kinds:
            self.folder.touch(kind, digest, depth)
        if self._pages.index.needs_state:
            self.folder.touch("state", digest, depth)

    def _take_state(self, digest: bytes, data: Bytes | None) -> None:
        if data is None or len(data) != self._state.slot_bytes or self._slots.n_free < 2:
            return
        slot = self._slots.take()
        self._state.write_slot(slot, data)
        self._pages.index.save(digest, slot)
        self._slots.give_back(slot)

    def _copy(self, digest: bytes, depth: int) -> None:
        """Copy a page, and the state after it if there is one, for writing."""
        for kind, read in self._unwritten(digest):
            self._writer.write(kind, digest, read, depth)

    def _unwritten(self, digest: bytes) -> list[tuple[str, Callable[[], Bytes]]]:
        """Return the kinds of a page's data that are cached but not on disk, each with its copy function."""
        index = self._pages.index
        page = index.page_of(digest)
        if page is None:
            return []
        out: list[tuple[str, Callable[[], Bytes]]] = []
        for table, kind in enumerate(self._kinds):
            pool = self._windows[table - 1] if table else None
            own = page if pool is None else int(pool.table[page])
            if own >= 0 and not self.folder.has(kind, digest):
                out.append((kind, partial(self._state.read_page, own, table)))
        slot = index.state_after(digest)
        if slot is not None and not self.folder.has("state", digest):
            out.append(("state", partial(self._state.read_slot, slot)))
        return out


def _rank(depth: int, n_shared: int) -> int:
    """Return the rank depth of a page in a prompt that starts with `n_shared` system prompt pages."""
    return depth - _LASTING if depth < n_shared else depth
