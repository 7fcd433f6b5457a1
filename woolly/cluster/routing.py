"""Router: selects the replica with the lowest expected time to first token.

The router uses no processes, sockets or clocks. Times are arguments, so the front and a simulation can share the code.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from woolly.runtime import PAGE_SIZE

_RATE = 100.0  # initial prefill rate in tokens per second
_NEWEST = 0.2  # weight of the latest measurement
_MEASURED = 64  # minimum tokens for a rate measurement
_ANSWER = 10.0  # initial duration of an answer in seconds


@dataclass(frozen=True)
class Route:
    """Replica with its expected costs."""

    replica: str
    cached_tokens: int  # cached tokens of the prompt, in memory or on disk
    seconds: float  # "load" if it is the least loaded replica; "prefix" if another one has more cached tokens
    reason: str  # "prefix": it has more of the prompt than the least loaded one; "load": it is the least loaded one


@dataclass(frozen=True)
class Ticket:
    """Request assigned to a replica."""

    number: int
    replica: str
    n_missing: int  # prompt tokens to compute
    started: float


@dataclass
class _Replica:
    name: str
    n_parallel: int  # maximum concurrent answers
    n_pages: int  # pages in memory
    n_disk_pages: int
    rate: float  # prefill rate in tokens per second
    disk_rate: float  # tokens per second loaded from disk
    answer_seconds: float = _ANSWER
    is_open: bool = True  # True if the replica accepts requests
    last: int = 0  # number of the latest ticket
    since: float = 0.0  # start time of the pending prompts
    due: dict[int, int] = field(default_factory=dict)  # tokens to compute, by ticket
    open: set[int] = field(default_factory=set)  # tickets
    memory: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)  # pages in LRU order
    disk: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)

    def wait(self, now: float) -> float:
        """Return the seconds until the replica can start another prompt."""
        prompts = max(0.0, sum(self.due.values()) / self.rate - max(0.0, now - self.since)) if self.due else 0.0
        n_before = len(self.open) - self.n_parallel + 1  # answers that must end first
        return prompts + max(0, n_before) * self.answer_seconds / self.n_parallel

    def held(self, pages: Sequence[Hashable]) -> tuple[int, int]:
        """Return the number of leading pages in memory, and of following pages on disk.

        A page counts as older than the pages before it, so that pages are evicted from the end.
        """
        n_memory = bisect_left(pages, True, key=lambda page: page not in self.memory)
        n_all = bisect_left(pages, True, n_memory, key=lambda page: page not in self.disk)
        return n_memory, n_all - n_memory

    def keep(self, pages: Sequence[Hashable]) -> None:
        for page in reversed(pages):
            self.disk.pop(page, None)
            self.memory[page] = None
            self.memory.move_to_end(page)
        while len(self.memory) > self.n_pages:
            page, _ = self.memory.popitem(last=False)
            self.disk[page] = None
        while len(self.disk) > self.n_disk_pages:
            self.disk.popitem(last=False)


class Router:
    """Selects replicas by expected time to first token: queueing, and prefill of the uncached part of the prompt.

    Prefix hashing and affinity with a threshold would send all requests with a common prefix to a single replica. A
    page is a digest of `page_tokens` tokens and all preceding tokens, as in `Request.digests_to`. The router tracks the
    pages of each replica, with LRU eviction.

    The owner calls these methods one at a time, with `now` of a single clock:

        joined(replica, now)           it accepts requests
        choose(pages, n_tokens, now)   -> Route, or None if no replica accepts requests
        started(choice, ...)           -> Ticket; the request was assigned to the replica
        answering(ticket, now)         the first token arrived
        finished(ticket, now)          the request ended, for any reason
        closed(replica)                it accepts no more requests, and finishes its open ones
        lost(replica)                  it is gone, including its cache
    """

    def __init__(self, page_tokens: int = PAGE_SIZE) -> None:
        self._page_tokens = page_tokens
        self._replicas: dict[str, _Replica] = {}
        self._numbers = itertools.count(1)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Replicas that accept requests."""
        return tuple(one.name for one in self._replicas.values() if one.is_open)

    def joined(
        self,
        replica: str,
        now: float,
        *,
        n_parallel: int = 16,
        n_pages: int = 1024,
        n_disk_pages: int = 0,
        rate: float | None = None,
        disk_rate: float = 1e4,
    ) -> None:
        """Add a replica with an empty cache. Without a rate, the replica is assumed to be as fast as the others."""
        if rate is None:
            known = [one.rate for one in self._replicas.values()]
            rate = sum(known) / len(known) if known else _RATE
        self._replicas[replica] = _Replica(
            replica, n_parallel, n_pages, n_disk_pages, rate, max(disk_rate, rate), since=now
        )

    def closed(self, replica: str) -> None:
        """Assign no more requests to a replica."""
        if replica in self._replicas:
            self._replicas[replica].is_open = False

    def lost(self, replica: str) -> None:
        """Remove a replica. Finishing its tickets has no effect."""
        self._replicas.pop(replica, None)

    def n_open(self, replica: str) -> int:
        """Return the number of open requests of a replica."""
        found = self._replicas.get(replica)
        return 0 if found is None else len(found.open)

    def choose(
        self, pages: Sequence[Hashable], n_tokens: int, now: float, *, without: Collection[str] = ()
    ) -> Route | None:
        """Return the best replica for a prompt of n_tokens that starts with these full pages.

        Ties are resolved round-robin. A replica in `without` is only chosen if there is no other replica.
        """
        able = [one for one in self._replicas.values() if one.is_open]
        able = [one for one in able if one.name not in without] or able
        if not able:
            return None
        waits = {one.name: one.wait(now) for one in able}
        found = {one.name: self._cost(one, pages, n_tokens, waits[one.name]) for one in able}
        best = min(able, key=lambda one: (found[one.name][0], len(one.open), one.last))
        idlest = min(able, key=lambda one: (waits[one.name], len(one.open), one.last))
        seconds, cached = found[best.name]
        reason = "prefix" if cached > found[idlest.name][1] else "load"
        return Route(best.name, cached, seconds, reason)

    def started(self, choice: Route, pages: Sequence[Hashable], n_tokens: int, now: float) -> Ticket:
        """Record that the prompt was assigned to the replica, which now caches its pages."""
        n_missing = max(1, n_tokens - choice.cached_tokens)
        ticket = Ticket(next(self._numbers), choice.replica, n_missing, now)
        one = self._replicas.get(choice.replica)
        if one is not None:
            one.last = ticket.number
            one.since = one.since if one.due else now
            one.due[ticket.number] = ticket.n_missing
            one.open.add(ticket.number)
            one.keep(pages)
        return ticket

    def answering(self, ticket: Ticket, now: float) -> None:
        """Record that the prompt is computed, and update the prefill rate. Further calls have no effect."""
        one = self._replicas.get(ticket.replica)
        if one is None or one.due.pop(ticket.number, None) is None:
            return
        seconds = now - max(ticket.started, one.since)
        if ticket.n_missing >= _MEASURED and seconds > 0:
            one.rate += _NEWEST * (ticket.n_missing / seconds - one.rate)
        one.since = now

    def finished(self, ticket: Ticket, now: float) -> None:
        """Record that the request has ended, possibly before its first token."""
        one = self._replicas.get(ticket.replica)
        if one is None or ticket.number not in one.open:
            return
        one.open.discard(ticket.number)
        if one.due.pop(ticket.number, None) is None:  # it had a first token
            one.answer_seconds += _NEWEST * (max(0.0, now - ticket.started) - one.answer_seconds)

    def _cost(self, one: _Replica, pages: Sequence[Hashable], n_tokens: int, wait: float) -> tuple[float, int]:
        """Return the expected seconds to the first token, and the cached tokens of the prompt.

        The last token of a prompt is always computed because its logits are needed.
        """
        in_memory, on_disk = one.held(pages)
        most = max(0, n_tokens - 1)
        cached = min(most, (in_memory + on_disk) * self._page_tokens)
        read = max(0, cached - min(most, in_memory * self._page_tokens))
        return wait + read / one.disk_rate + (n_tokens - cached) / one.rate, cached
