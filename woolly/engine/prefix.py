"""The PrefixIndex: which full pages of the cache hold which text, and why a request found no more of its own."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from woolly.runtime import PAGE_SIZE

__all__ = ["PrefixIndex", "PrefixReport", "PrefixStats", "page_digest"]

ROOT = b""  # stands before the first page

# A cryptographic digest over all tokens so far: texts that differ cannot be made to share a page, not even on purpose.
_DIGEST_BYTES = 20

# Pages that a request is compared with to tell where it diverged: thousands may follow one beginning.
_MOST_COMPARED = 64


@dataclass(frozen=True)
class PrefixReport:
    """What one request found in the cache when it was admitted.

    The reason says why the rest was computed: None where all that can be shared was (the last token never is, its
    logits are needed), "short" (no full page to share), "cold" (nothing like it was cached), "diverged at token N",
    "ended at token N" (what is cached agrees, but is shorter), "evicted" (it was cached once), "recomputed" (wanted
    by the request itself: log-probabilities of the prompt, or hooks).
    """

    hit_tokens: int
    miss_tokens: int
    reason: str | None


@dataclass(frozen=True)
class PrefixStats:
    """Figures of prefix reuse since the start."""

    hit_tokens: int
    miss_tokens: int
    evictions: int
    cached_pages: int  # known, whether or not somebody uses them
    reasons: Mapping[str, int]  # requests by the first word of their report's reason, "complete" where there is none


@dataclass(frozen=True)
class _Entry:
    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


def page_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Names a page by its tokens and all tokens before them."""
    return hashlib.blake2b(parent + array("i", tokens).tobytes(), digest_size=_DIGEST_BYTES).digest()


class PrefixIndex:
    """Digest -> page."""

    def __init__(self, most_ghosts: int) -> None:
        self._pages: dict[bytes, int] = {}
        self._entries: dict[int, _Entry] = {}
        self._children: dict[bytes, dict[bytes, int]] = {ROOT: {}}
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()  # digests of evicted pages, oldest first
        self._most_ghosts = most_ghosts
        self._hit_tokens = self._miss_tokens = self._evictions = 0
        self._reasons: Counter[str] = Counter()

    def knows(self, page: int) -> bool:
        """Whether the page's text can be found."""
        return page in self._entries

    def find(self, digests: Sequence[bytes]) -> list[int]:
        """Pages of the longest known beginning."""
        pages = []
        for digest in digests:
            page = self._pages.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def add(self, page: int, parent: bytes, digest: bytes, tokens: Sequence[int]) -> None:
        """Makes a full page known. Of two pages with the same text the first stays the known one."""
        if digest in self._pages or page in self._entries:
            return
        self._pages[digest] = page
        self._entries[page] = _Entry(digest, parent, tuple(tokens))
        self._children.setdefault(parent, {})[digest] = page
        self._ghosts.pop(digest, None)

    def forget(self, page: int) -> None:
        """Takes an evicted page out."""
        entry = self._entries.pop(page)
        del self._pages[entry.digest]
        siblings = self._children[entry.parent]
        del siblings[entry.digest]
        if not siblings and entry.parent != ROOT:
            del self._children[entry.parent]
        self._evictions += 1
        self._ghosts[entry.digest] = None
        if len(self._ghosts) > self._most_ghosts:
            self._ghosts.popitem(last=False)

    def report(self, tokens: Sequence[int], digests: Sequence[bytes], n_hit_pages: int, reuse: bool) -> PrefixReport:
        """Counts what a request found, and says why it found no more."""
        hit = n_hit_pages * PAGE_SIZE
        reason = self._reason(tokens, digests, n_hit_pages) if reuse else "recomputed"
        self._hit_tokens += hit
        self._miss_tokens += len(tokens) - hit
        self._reasons[reason.split()[0] if reason else "complete"] += 1
        return PrefixReport(hit, len(tokens) - hit, reason)

    def stats(self) -> PrefixStats:
        """The figures so far."""
        return PrefixStats(
            self._hit_tokens, self._miss_tokens, self._evictions, len(self._entries), dict(self._reasons)
        )

    def _reason(self, tokens: Sequence[int], digests: Sequence[bytes], n_hit: int) -> str | None:
        if not digests:
            return "short"
        if n_hit == len(digests):
            return None
        if digests[n_hit] in self._ghosts:
            return "evicted"
        first = n_hit * PAGE_SIZE
        wanted = tokens[first : first + PAGE_SIZE]
        others = self._children.get(digests[n_hit - 1] if n_hit else ROOT, {})
        latest = itertools.islice(reversed(others.values()), _MOST_COMPARED)
        alike = max((_common(wanted, self._entries[page].tokens) for page in latest), default=0)
        if first + alike == 0:
            return "cold"
        return f"diverged at token {first + alike}" if others else f"ended at token {first}"


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two pages begin with alike."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
