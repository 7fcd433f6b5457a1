"""The DiskTier: brings pages from files into the cache while other requests run, and writes those worth it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
import numpy.typing as npt

from woolly.cache.disk import Kind, PageFolder
from woolly.cache.pages import PagePool
from woolly.cache.slots import SlotPool
from woolly.runtime import PAGE_SIZE, PortableState

__all__ = ["DiskStats", "DiskTier"]

Bytes = npt.NDArray[np.uint8]

_THREADS = 2
_WRITING = 64 << 20  # bytes of copies that may wait for the disk
_PER_STEP = 4  # pages that one step copies for the disk
_PACE = 0.3  # weight of the latest observation in a moving average
_OVERHEAD = 0.002  # seconds that a read takes besides its bytes
_LASTING = 30 * 86_400  # seconds that system prompts stay longer than other unused pages
_FLUSHING = 4.0  # seconds that closing may take to write what is not on disk


@dataclass(frozen=True)
class DiskStats:
    """What the disk tier did since the start."""

    n_files: int
    n_bytes: int  # of all files in the folder
    read_tokens: int
    written_bytes: int
    n_damaged: int  # files that were not what their name says, and were removed
    disk_rate: float  # bytes per second of reading, measured
    compute_rate: float  # tokens per second of prompts, measured; 0: not yet
    refusal: str | None  # why the last page was not written


@dataclass
class _Load:
    """Pages of one request on their way from disk."""

    digests: list[bytes]  # of all pages up to the last that comes
    tokens: Sequence[int]
    root: bytes
    first: int  # the first page that comes
    pages: list[Future[Bytes | None]]
    state: Future[Bytes | None] | None = None
    n_shared: int = 0  # first pages that are a system prompt's
    started: float = field(default_factory=time.monotonic)

    @property
    def is_done(self) -> bool:
        return all(one.done() for one in self.pages) and (self.state is None or self.state.done())


class DiskTier:
    """Below the prefix index: what is found here is added to the index, and requests find it there as ever.

    A request whose next pages are on disk waits while two threads read them, if that takes less time than to compute
    them: both rates are measured, at the start and at every use. Pages are written when they are wanted a second time,
    and all of them when the engine closes. Those of system prompts stay longer from their second use on: a prompt with
    the time in it, or each row of a batch, would push out what is used. All but the reading and writing of files is
    done by the engine's thread.
    """

    def __init__(
        self, folder: PageFolder, state: PortableState, pages: PagePool, slots: SlotPool, compute_rate: float = 0.0
    ) -> None:
        """`compute_rate` is a first measurement, in tokens per second; 0: the first prompts measure it."""
        self.folder = folder
        self._state = state
        self._pages = pages
        self._slots = slots
        self._page_bytes = state.page_bytes
        self._disk_rate = folder.measured_rate()
        self._compute_rate = compute_rate
        self._loads: dict[Hashable, _Load] = {}
        self._coming: set[bytes] = set()
        self._wanted: OrderedDict[bytes, int] = OrderedDict()  # depth of pages that are to be written
        self._lasting: set[bytes] = set()  # pages of system prompts whose files this process has ranked
        self._arrived = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="woolly-disk")
        self._n_writing = 0
        self._under_way: set[tuple[str, bytes]] = set()  # files that are being written
        self._erasures: list[Future[None]] = []
        self._lock = threading.Lock()
        self._read_tokens = self._written = 0

    @property
    def is_loading(self) -> bool:
        """Whether pages are on their way."""
        return bool(self._loads)

    def stats(self) -> DiskStats:
        """Returns the counts so far."""
        folder = self.folder
        return DiskStats(
            len(folder),
            folder.n_bytes,
            self._read_tokens,
            self._written,
            folder.n_damaged,
            self._disk_rate,
            self._compute_rate,
            folder.refusal,
        )

    def saw(self, n_rows: int, seconds: float) -> None:
        """Learns from a step of a prompt how fast this machine computes."""
        if n_rows >= PAGE_SIZE and seconds > 0:
            rate = n_rows / seconds
            self._compute_rate += (rate - self._compute_rate) * (_PACE if self._compute_rate else 1.0)

    def is_worth(self, n_bytes: int, n_tokens: int) -> bool:
        """Whether to read takes less time than to compute, as far as both were measured."""
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
        """Starts to read the next pages of a request, at most `n_spare`; False if there are none worth it.

        `settle` ends the waiting. The first `n_shared` pages are a system prompt's.
        """
        index = self._pages.index
        found, known = len(index.find(digests)), len(index.known(digests))
        end = known
        while end < len(digests) and end - known < n_spare and self.folder.has("page", digests[end]):
            end += 1
        while index.needs_state and end > found and not self._has_state(digests[end - 1]):
            end -= 1
        if end <= found:
            return False
        first = min(known, end)
        its = list(digests[:end])
        needs_slot = index.needs_state and index.state_after(its[-1]) is None
        n_bytes = (end - first) * self._page_bytes + (self._state.slot_bytes if needs_slot else 0)
        if not self.is_worth(n_bytes, (end - found) * PAGE_SIZE):
            return False
        reads = [self._submit_read("page", digest) for digest in its[first:]]
        state = self._submit_read("state", its[-1]) if needs_slot else None
        self._loads[user] = _Load(its, tokens, root, first, reads, state, n_shared)
        self._coming.update(its[first:])
        return True

    def is_fetching(self, user: Hashable, digests: Sequence[bytes]) -> bool:
        """Whether pages of a request, or pages that it shares with another, are on their way."""
        return user in self._loads or any(digest in self._coming for digest in digests)

    def settle(self, n_kept: int) -> None:
        """Adds pages that have arrived to the index. `n_kept` free pages are left for running requests."""
        self._arrived.clear()
        for user in [user for user, load in self._loads.items() if load.is_done]:
            load = self._loads.pop(user)
            self._coming.difference_update(load.digests[load.first :])
            self._take_in(load, n_kept)

    def wait(self, seconds: float) -> None:
        """Waits until a read ends."""
        self._arrived.wait(seconds)

    def forget(self, user: Hashable) -> None:
        """Drops what a request waits for."""
        load = self._loads.pop(user, None)
        if load is not None:
            self._coming.difference_update(load.digests[load.first :])

    def want(self, digests: Sequence[bytes], first: int = 0, n_shared: int = 0) -> None:
        """Notes pages that were wanted a second time; `first` is the number of pages before them.

        The first `n_shared` pages of the text are a system prompt's, and stay a month longer than others.
        """
        for depth, digest in enumerate(digests, first):
            if not self.folder.has("page", digest):
                rank = _rank(depth, n_shared)
                self._wanted[digest] = min(rank, self._wanted.get(digest, rank))
            elif depth < n_shared and digest not in self._lasting:
                self._lasting.add(digest)  # a rank of its first use, which a process that closed gave it, is not enough
                self._touch(digest, _rank(depth, n_shared))

    def erase(self, digests: Sequence[bytes]) -> None:
        """Removes pages and states from disk, and from what is to be written; writes under way end before."""
        for digest in digests:
            self._wanted.pop(digest, None)
            self._lasting.discard(digest)
            self._erasures = [one for one in self._erasures if not one.done()]
            self._erasures += [self._pool.submit(self.folder.erase, kind, digest) for kind in get_args(Kind)]

    def work(self) -> None:
        """Copies some wanted pages and hands them to the threads, as long as the disk keeps up."""
        for _ in range(_PER_STEP):
            if not self._wanted or self._n_writing >= _WRITING:
                return
            digest, depth = self._wanted.popitem(last=False)
            self._copy(digest, depth)

    def flush(self) -> None:
        """Writes all pages and states that are not on disk, the latest texts first, within a time."""
        end = time.monotonic() + _FLUSHING
        wait(self._erasures)  # all of them, whatever they take
        self.folder.look()
        index = self._pages.index
        for digest, depth in index.stored():
            while self._n_writing >= _WRITING and time.monotonic() < end:
                time.sleep(0.002)
            if time.monotonic() > end:
                break
            if not self.folder.has("page", digest) or index.state_after(digest) is not None:
                self._copy(digest, self._wanted.get(digest, depth))
        while self._n_writing and time.monotonic() < end:
            time.sleep(0.002)
        self._pool.shutdown(wait=not self._n_writing, cancel_futures=True)  # not for a disk that hangs

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _has_state(self, digest: bytes) -> bool:
        return self._pages.index.state_after(digest) is not None or self.folder.has("state", digest)

    def _submit_read(self, kind: str, digest: bytes) -> Future[Bytes | None]:
        future = self._pool.submit(self.folder.read, "page" if kind == "page" else "state", digest)
        future.add_done_callback(lambda _: self._arrived.set())
        return future

    def _take_in(self, load: _Load, n_kept: int) -> None:
        """Puts the pages of a load into the cache, up to the first that could not be read."""
        taken: list[int] = []
        n_read = 0
        for i, future in enumerate(load.pages, load.first):
            data = future.result()
            if data is None or len(data) != self._page_bytes or self._pages.n_free <= n_kept + 1:
                break
            n_read += 1
            (page,) = self._pages.take(1)
            self._state.write_page(page, data)
            parent = load.digests[i - 1] if i else load.root
            tokens = load.tokens[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
            self._pages.publish(page, parent, load.digests[i], tokens)
            self._touch(load.digests[i], _rank(i, load.n_shared))
            taken.append(page)
        self._pages.give_back(taken)
        self._read_tokens += n_read * PAGE_SIZE
        if load.state is not None and n_read == len(load.pages):
            self._take_state(load.digests[-1], load.state.result())
        if n_read:
            rate = n_read * self._page_bytes / max(1e-6, time.monotonic() - load.started)
            self._disk_rate += _PACE * (rate - self._disk_rate)

    def _touch(self, digest: bytes, depth: int) -> None:
        self.folder.touch("page", digest, depth)
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
        """Copies a page, and the state after it if there is one, for a thread to write."""
        index = self._pages.index
        page = index.page_of(digest)
        if page is None:
            return
        if not self.folder.has("page", digest):
            self._submit_write("page", digest, self._state.read_page(page), depth)
        slot = index.state_after(digest)
        if slot is not None and not self.folder.has("state", digest):
            self._submit_write("state", digest, self._state.read_slot(slot), depth)

    def _submit_write(self, kind: str, digest: bytes, data: Bytes, depth: int) -> None:
        with self._lock:
            if (kind, digest) in self._under_way:
                return
            self._under_way.add((kind, digest))
            self._n_writing += len(data)

        def write() -> None:
            try:
                if self.folder.write("page" if kind == "page" else "state", digest, data, depth):
                    self._written += len(data)
            finally:
                with self._lock:
                    self._under_way.discard((kind, digest))
                    self._n_writing -= len(data)

        self._pool.submit(write)


def _rank(depth: int, n_shared: int) -> int:
    """Returns the depth by which the folder ranks a page of a text whose first `n_shared` are a system prompt's."""
    return depth - _LASTING if depth < n_shared else depth
