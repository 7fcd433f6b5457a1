"""PrefixIndex: finds full cache pages by the digest of their tokens, and reports the reasons for misses."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.runtime import PAGE_SIZE

if TYPE_CHECKING:
    from woolly.cache.sliding_window import WindowPool

ROOT = b""  # parent of the first page of a request without salt

# A cryptographic digest over all tokens so far, so collisions cannot be crafted.
_DIGEST_BYTES = 20

# Maximum number of pages to compare in search of the divergence: a prefix may have thousands of continuations.
_MAX_COMPARED = 64


@dataclass(frozen=True)
class PrefixReport:
    """Result of a prefix cache lookup.

    The reason explains why the rest was computed:
    - None: all shareable tokens were cached (the last token is always computed because its logits are needed);
    - "short": the prompt has no full page;
    - "cold": no prefix was cached;
    - "diverged at token N";
    - "ended at token N": the cached tokens match, but are fewer;
    - "unsaved at token N": the pages are cached, but not the recurrent state or the pages of a window;
    - "evicted": the prefix was cached before;
    - "recomputed": the request needs every row, for prompt log-probabilities or hooks.
    """

    hit_tokens: int
    miss_tokens: int
    reason: str | None


@dataclass(frozen=True)
class PrefixStats:
    """Counts of prefix reuse since the start."""

    hit_tokens: int
    miss_tokens: int
    evictions: int
    cached_pages: int  # pages in the index
    snapshots: int  # recurrent states in the index; 0 for models without recurrent state
    reasons: Mapping[str, int]  # number of requests by the first word of the reason; "complete" for None


@dataclass(frozen=True)
class _Entry:
    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


def page_digest(parent: bytes, tokens: Sequence[int], rows: bytes = b"") -> bytes:
    """Return the digest of a page, computed from its tokens, all preceding tokens and the image `rows` in it."""
    return hashlib.blake2b(parent + array("i", tokens).tobytes() + rows, digest_size=_DIGEST_BYTES).digest()


class PrefixIndex:
    """Maps page digests to pages, and to slots with a snapshot of the recurrent state after the page.

    A recurrent model can only continue at a snapshot.
    """

    def __init__(self, max_ghosts: int, needs_state: bool = False, windows: Sequence[WindowPool] = ()) -> None:
        self.needs_state = needs_state
        self.early: set[int] = set()  # prefetched pages that no request has used, which are evicted first
        self._windows = windows
        self.on_lost_state: Callable[[int], None] = lambda slot: None  # called for each dropped snapshot
        self._saved: dict[bytes, int] = {}  # slots with the state after a page
        self._digests: dict[int, bytes] = {}  # digest of each slot in `_saved`
        self._lost: OrderedDict[bytes, None] = OrderedDict()  # digests with evicted state, oldest first
        self._pages: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._children: dict[bytes, dict[bytes, int]] = {ROOT: {}}
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()  # digests of evicted pages, oldest first
        self._max_ghosts = max_ghosts
        self._hit_tokens = self._miss_tokens = self._evictions = 0
        self._reasons: Counter[str] = Counter()

    def knows(self, page: int) -> bool:
        """Return True if a page is in the index."""
        return page in self._entries

    def is_snapshot(self, slot: int) -> bool:
        """Return True if a slot is a snapshot."""
        return slot in self._digests

    def state_after(self, digest: bytes) -> int | None:
        """Return the slot with the state after a page, or None."""
        return self._saved.get(digest)

    def is_early(self, slot: int) -> bool:
        """Return True if the page of a snapshot was prefetched."""
        return self._pages.get(self._digests[slot], -1) in self.early

    def save(self, digest: bytes, slot: int) -> bool:
        """Save a slot as the snapshot after a page. Return False if the page already has one or is not in the index."""
        if digest in self._saved or digest not in self._pages or slot in self._digests:
            return False
        self._saved[digest] = slot
        self._digests[slot] = digest
        self._lost.pop(digest, None)
        return True

    def forget_state(self, slot: int, is_evicted: bool = True) -> None:
        """Remove a snapshot. Evicted snapshots are remembered for reports."""
        digest = self._digests.pop(slot)
        del self._saved[digest]
        if is_evicted:
            self._lost[digest] = None
            if len(self._lost) > self._max_ghosts:
                self._lost.popitem(last=False)
        self.on_lost_state(slot)

    def page_of(self, digest: bytes) -> int | None:
        """Return the page with a digest, or None."""
        return self._pages.get(digest)

    def was_evicted(self, digest: bytes) -> bool:
        """Return True if a page was evicted from the index."""
        return digest in self._ghosts

    def stored(self) -> list[tuple[bytes, int]]:
        """Return the digests and depths of all pages, latest prompt first and each prompt from its start."""
        parents = {entry.digest: entry.parent for entry in self._entries.values()}  # in order of publication
        depths: dict[bytes, int] = {}
        for last in reversed(parents):
            text = []
            digest = last
            while digest in parents and digest not in depths:
                text.append(digest)
                digest = parents[digest]
            first = depths.get(digest, -1) + 1
            depths.update({digest: first + i for i, digest in enumerate(reversed(text))})
        return list(depths.items())

    def find(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest cached prefix at which a request can continue."""
        pages = self.known(digests)
        n, before = len(pages), -1
        while n != before:
            before = n
            while self.needs_state and n and digests[n - 1] not in self._saved:
                n -= 1
            for pool in self._windows:
                n = pool.resumable(pages[:n])
        return pages[:n]

    def known(self, digests: Sequence[bytes]) -> list[int]:
        """Return the pages of the longest cached prefix."""
        pages = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def add(self, page: int, parent: bytes, digest: bytes, tokens: Sequence[int]) -> int | None:
        """Add a full page.

        If another page has the same digest, the index keeps it, unless its window pages are lost. Return the replaced
        page, or None.
        """
        if page in self._entries:
            return None
        old = self._pages.get(digest)
        if old is not None:
            if all(pool.table[old] >= 0 for pool in self._windows):
                return None
            del self._entries[old]
        self._pages[digest] = page
        self._entries[page] = _Entry(digest, parent, tuple(tokens))
        self._children.setdefault(parent, {})[digest] = page
        self._ghosts.pop(digest, None)
        return old

    def forget(self, page: int) -> None:
        """Remove an evicted page."""
        entry = self._entries.pop(page)
        del self._pages[entry.digest]
        if entry.digest in self._saved:
            self.forget_state(self._saved[entry.digest])
        siblings = self._children[entry.parent]
        del siblings[entry.digest]
        if not siblings and entry.parent != ROOT:
            del self._children[entry.parent]
        self._evictions += 1
        self._ghosts[entry.digest] = None
        if len(self._ghosts) > self._max_ghosts:
            self._ghosts.popitem(last=False)

    def report(
        self, tokens: Sequence[int], digests: Sequence[bytes], n_hit_pages: int, reuse: bool, root: bytes = ROOT
    ) -> PrefixReport:
        """Record a lookup and return its report. `root` is the parent of the first page."""
        hit = n_hit_pages * PAGE_SIZE
        reason = self._reason(tokens, digests, n_hit_pages, root) if reuse else "recomputed"
        self._hit_tokens += hit
        self._miss_tokens += len(tokens) - hit
        self._reasons[reason.split()[0] if reason else "complete"] += 1
        return PrefixReport(hit, len(tokens) - hit, reason)

    def stats(self) -> PrefixStats:
        """Return the counts since the start."""
        return PrefixStats(
            self._hit_tokens,
            self._miss_tokens,
            self._evictions,
            len(self._entries),
            len(self._saved),
            dict(self._reasons),
        )

    def _reason(self, tokens: Sequence[int], digests: Sequence[bytes], n_hit: int, root: bytes) -> str | None:
        if not digests:
            return "short"
        if n_hit == len(digests):
            return None
        if digests[n_hit] in self._ghosts:
            return "evicted"
        if (n_known := len(self.known(digests))) > n_hit:
            is_evicted = any(digest in self._lost for digest in digests[n_hit:n_known])
            return "evicted" if is_evicted else f"unsaved at token {n_known * PAGE_SIZE}"
        first = n_hit * PAGE_SIZE
        wanted = tokens[first : first + PAGE_SIZE]
        others = self._children.get(digests[n_hit - 1] if n_hit else root, {})
        latest = itertools.islice(reversed(others.values()), _MAX_COMPARED)
        alike = max((_common(wanted, self._entries[page].tokens) for page in latest), default=0)
        if first + alike == 0:
            return "cold"
        return f"diverged at token {first + alike}" if others else f"ended at token {first}"


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of two pages."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
