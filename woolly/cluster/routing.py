"""The Router: which replica gives the first token of a request soonest.

It knows nothing of processes, sockets or clocks: every time is an argument. The front and a simulation share it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

from woolly.runtime import PAGE_SIZE

_RATE = 100.0  # tokens per second at which a replica computes prompts, before anything is known
_NEWEST = 0.2  # weight of the newest measure of a rate or a time
_MEASURED = 64  # tokens; a shorter prompt says little about the rate
_ANSWER = 10.0  # seconds of an answer, before one has ended


@dataclass(frozen=True)
class Route:
    """A replica, and what is expected of it."""

    replica: str
    cached_tokens: int  # of the prompt, in its memory or on its disk
    seconds: float  # to the first token
    reason: str  # "prefix": it has more of the prompt than the least loaded one; "load": it is the least loaded one


@dataclass(frozen=True)
class Ticket:
    """A request that a replica was given."""

    number: int
    replica: str
    n_missing: int  # tokens of the prompt that the replica has to compute
    started: float


@dataclass
class _Replica:
    name: str
    n_parallel: int  # answers that it computes at once
    n_pages: int  # pages that it keeps in memory
    n_disk_pages: int
    rate: float  # tokens of prompts per second
    disk_rate: float  # tokens per second that come from its disk
    answer_seconds: float = _ANSWER
    is_open: bool = True  # whether it takes requests
    last: int = 0  # number of its latest ticket
    since: float = 0.0  # when it began with the prompts that are due
    due: dict[int, int] = field(default_factory=dict)  # tokens still to compute, by ticket
    open: set[int] = field(default_factory=set)  # tickets
    memory: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)  # pages, the longest unused first
    disk: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)

    def wait(self, now: float) -> float:
        """Returns the seconds until it could begin with another prompt."""
        prompts = max(0.0, sum(self.due.values()) / self.rate - max(0.0, now - self.since)) if self.due else 0.0
        n_before = len(self.open) - self.n_parallel + 1  # answers that must end first
        return prompts + max(0, n_before) * self.answer_seconds / self.n_parallel

    def held(self, pages: Sequence[Hashable]) -> tuple[int, int]:
        """Returns how many of the first pages are in memory, and how many of those after them on disk.

        A page is used with all pages before it and counts as older than they are, so that pages are lost from the end.
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
    """Chooses by the expected time to the first token: the wait, and the part of the prompt that is to be computed.

    Neither a hash of the beginning nor affinity with a threshold does that: where all requests begin alike, they send
    all of them to one replica. A page is a name that stands for `page_tokens` tokens and all tokens before them, such
    as `Request.digests_to` gives. The router remembers which replica it gave which pages, and what it keeps of them.

    The owner calls, with one clock's `now` and one call at a time:

        joined(replica, now)           it takes requests from now on
        choose(pages, n_tokens, now)   -> Choice, or None if no replica takes requests
        started(choice, ...)           -> Ticket; the request was given to the replica
        answering(ticket, now)         its first token came
        finished(ticket, now)          it ended, in whatever way
        closed(replica)                it takes no more requests, and finishes those it has
        lost(replica)                  it is gone, and all that it kept
    """

    def __init__(self, page_tokens: int = PAGE_SIZE) -> None:
        self._page_tokens = page_tokens
        self._replicas: dict[str, _Replica] = {}
        self._numbers = itertools.count(1)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Returns the replicas that take requests."""
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
        """Adds a replica that has nothing in its cache. Without a rate, it is taken to be as fast as the others."""
        if rate is None:
            known = [one.rate for one in self._replicas.values()]
            rate = sum(known) / len(known) if known else _RATE
        self._replicas[replica] = _Replica(
            replica, n_parallel, n_pages, n_disk_pages, rate, max(disk_rate, rate), since=now
        )

    def closed(self, replica: str) -> None:
        """Gives a replica no further requests."""
        if replica in self._replicas:
            self._replicas[replica].is_open = False

    def lost(self, replica: str) -> None:
        """Forgets a replica. Its tickets may still be finished, which changes nothing."""
        self._replicas.pop(replica, None)

    def n_open(self, replica: str) -> int:
        """Returns the requests that a replica has."""
        found = self._replicas.get(replica)
        return 0 if found is None else len(found.open)

    def choose(
        self, pages: Sequence[Hashable], n_tokens: int, now: float, *, without: Collection[str] = ()
    ) -> Route | None:
        """Returns the best replica for a prompt of n_tokens, which begins with these full pages.

        Equal ones take turns. A replica that is `without` is chosen only if there is no other.
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
        """Notes that the replica was given the prompt, and keeps its pages from now on."""
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
        """Notes that the prompt is computed: measures how fast that was. A second call changes nothing."""
        one = self._replicas.get(ticket.replica)
        if one is None or one.due.pop(ticket.number, None) is None:
            return
        seconds = now - max(ticket.started, one.since)
        if ticket.n_missing >= _MEASURED and seconds > 0:
            one.rate += _NEWEST * (ticket.n_missing / seconds - one.rate)
        one.since = now

    def finished(self, ticket: Ticket, now: float) -> None:
        """Notes that the request has ended, also if it was cancelled before its first token."""
        one = self._replicas.get(ticket.replica)
        if one is None or ticket.number not in one.open:
            return
        one.open.discard(ticket.number)
        if one.due.pop(ticket.number, None) is None:  # it gave an answer
            one.answer_seconds += _NEWEST * (max(0.0, now - ticket.started) - one.answer_seconds)

    def _cost(self, one: _Replica, pages: Sequence[Hashable], n_tokens: int, wait: float) -> tuple[float, int]:
        """Returns the expected seconds to the first token, and the tokens of the prompt that are cached.

        The last token of a prompt is always computed: its logits are needed.
        """
        in_memory, on_disk = one.held(pages)
        most = max(0, n_tokens - 1)
        cached = min(most, (in_memory + on_disk) * self._page_tokens)
        read = max(0, cached - min(most, in_memory * self._page_tokens))
        return wait + read / one.disk_rate + (n_tokens - cached) / one.rate, cached
