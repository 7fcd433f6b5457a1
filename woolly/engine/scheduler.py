"""The Scheduler: which rows of which sequences run in the next step."""

from __future__ import annotations

import itertools
from bisect import insort
from collections.abc import Iterable

from woolly.engine.pages import PagePool
from woolly.engine.sequence import Sequence
from woolly.engine.work import Work
from woolly.runtime import PAGE_SIZE, pages_for

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served, higher priorities before lower ones.

    Sequences that answer go first, one row each, so a long prompt delays nobody by more than a chunk. Of what is left
    of the chunk, half goes to the prompt that came first, so that it always gets on, and the rest to those with the
    least to go, so that a short one need not wait for a long one. A step that brings a short one to its first token
    is not filled up by the long one: it would only come later.

    A sequence is admitted when the cache has pages for its context; further pages are taken one by one. When none is
    free, the last of the running gives its pages up and is computed again later. The first always gets on, and each
    fits alone, so all come to an end.
    """

    def __init__(self, pages: PagePool, *, chunk: int, max_running: int) -> None:
        self.pages = pages
        self.chunk = chunk  # most rows in one step
        self.max_running = min(max_running, chunk)  # each that answers needs a row
        self.waiting: list[Sequence] = []  # both lists are in order of rank
        self.running: list[Sequence] = []
        self.n_preemptions = 0
        self._ranks: dict[Sequence, tuple[int, int]] = {}
        self._arrivals = itertools.count()
        self._promised: dict[bytes, Sequence] = {}  # digests of pages that a running sequence is about to fill
        self._awaited: dict[Sequence, bytes] = {}  # the last of these that a waiting one waits for

    @property
    def sequences(self) -> Iterable[Sequence]:
        """All that wait or run."""
        return tuple(self._ranks)

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence."""
        self._ranks[sequence] = (-sequence.priority, next(self._arrivals))
        self._queue(self.waiting, sequence)

    def schedule(self) -> list[Work]:
        """What runs next; empty where nothing waits."""
        self._admit()
        work: list[Work] = []
        filling: list[Sequence] = []
        for sequence in tuple(self.running):
            if not sequence.pages:
                continue  # preempted by one before it
            if sequence.n_missing > 1:
                filling.append(sequence)
            elif self._grow(sequence):
                work.append(Work(sequence, 1))
        if filling:
            work += self._share(self.chunk - len(work), [s for s in filling if s.pages])
        return work

    def settle(self, sequence: Sequence) -> None:
        """Makes the pages that are full known, so that others may share them."""
        n_full = sequence.n_computed // PAGE_SIZE
        if n_full <= sequence.n_published:
            return
        digests = sequence.digests_to(n_full)
        for i in range(sequence.n_published, n_full):
            parent = digests[i - 1] if i else b""
            tokens = sequence.context[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
            self.pages.index.add(sequence.pages[i], parent, digests[i], tokens)
            self._keep_promise(digests[i], sequence)
        sequence.n_published = n_full

    def room_for(self, sequence: Sequence, n_drafts: int) -> bool:
        """Takes pages for drafts where some are to spare; nobody gives way for them."""
        needed = pages_for(sequence.n_computed + 1 + n_drafts) - len(sequence.pages)
        if needed > 0:
            # Each that runs may soon need a page of its own.
            if needed > self.pages.n_free - len(self.running):
                return False
            sequence.pages += self.pages.take(needed)
        return True

    def claim(self, n: int) -> list[int]:
        """Pages for something other than a sequence; the last of the running give way."""
        while n > self.pages.n_free and self.running:
            self._preempt(self.running[-1])
        return self.pages.take(n)

    def release(self, sequence: Sequence) -> None:
        """Takes a sequence out and frees its pages; what it computed stays known."""
        if self._ranks.pop(sequence, None) is None:
            return
        self._awaited.pop(sequence, None)
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._vacate(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Back to the queue, because its context has changed."""
        self.running.remove(sequence)
        self._vacate(sequence)
        self._queue(self.waiting, sequence)

    def _admit(self) -> None:
        """From the queue to the running, as far as places and pages go."""
        if not self.waiting:
            return
        for sequence in tuple(self.waiting):
            if len(self.running) >= self.max_running:
                return
            if self._awaits(self._awaited.get(sequence), sequence):
                continue
            n_reusable = sequence.n_reusable // PAGE_SIZE
            digests = sequence.digests_to(n_reusable)
            found = self.pages.index.find(digests)
            n_coming = len(found)
            while n_coming < n_reusable and self._awaits(digests[n_coming], sequence):
                n_coming += 1
            if n_coming > len(found):
                self._awaited[sequence] = digests[n_coming - 1]
                continue
            needed = pages_for(len(sequence.context)) - len(found)
            idle = sum(self.pages.n_users(page) == 0 for page in found)
            # A page for each that runs is left, so that nobody has to give way again at once.
            if needed + idle + len(self.running) > self.pages.n_free and self.running:
                return
            self._start(sequence, found, needed)

    def _awaits(self, digest: bytes | None, sequence: Sequence) -> bool:
        """Whether another one is computing this page of the same text: cheaper to wait for it."""
        other = None if digest is None else self._promised.get(digest)
        return other is not None and other.priority >= sequence.priority

    def _start(self, sequence: Sequence, found: list[int], needed: int) -> None:
        self._awaited.pop(sequence, None)
        if sequence.prefix is None:
            whole = (len(sequence.context) - 1) // PAGE_SIZE
            reuse = sequence.n_reusable == len(sequence.context) - 1
            digests = sequence.digests_to(whole)
            sequence.prefix = self.pages.index.report(sequence.prompt, digests, len(found), reuse)
        self.pages.share(found)
        sequence.pages = found + self.pages.take(needed)
        sequence.n_computed = len(found) * PAGE_SIZE
        sequence.n_published = len(found)
        for digest in sequence.digests_to(len(sequence.context) // PAGE_SIZE)[len(found) :]:
            self._promised.setdefault(digest, sequence)
        self.waiting.remove(sequence)
        self._queue(self.running, sequence)

    def _grow(self, sequence: Sequence) -> bool:
        """A page for the next token where the last one is full; False where the sequence itself had to give way."""
        if pages_for(sequence.n_computed + 1) > len(sequence.pages):
            while self.pages.n_free == 0:
                last = self.running[-1]
                self._preempt(last)
                if last is sequence:
                    return False
            sequence.pages += self.pages.take(1)
        return True

    def _share(self, rows: int, filling: list[Sequence]) -> list[Work]:
        """Rows for prompts; a higher priority goes before all lower ones."""
        work: list[Work] = []
        for _, group in itertools.groupby(filling, key=lambda sequence: sequence.priority):
            first, *others = group
            shares = {first: min(first.n_missing, (rows + 1) // 2 if others else rows)}
            left = rows - shares[first]
            passed = False  # whether one with less to go than the first is done in this step
            for sequence in sorted((first, *others), key=lambda sequence: sequence.n_missing):
                if sequence is first and passed:
                    continue
                more = min(sequence.n_missing - shares.get(sequence, 0), left)
                shares[sequence] = shares.get(sequence, 0) + more
                passed = passed or shares[sequence] == sequence.n_missing
                left -= more
            work += [Work(sequence, n) for sequence, n in shares.items() if n > 0]
            rows = left
        return work

    def _preempt(self, sequence: Sequence) -> None:
        self.n_preemptions += 1
        sequence.n_preemptions += 1
        self.restart(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        if sequence.pages:
            self.settle(sequence)
            for digest in sequence.digests:
                self._keep_promise(digest, sequence)
            self.pages.give_back(sequence.drop_pages())

    def _keep_promise(self, digest: bytes, sequence: Sequence) -> None:
        if self._promised.get(digest) is sequence:
            del self._promised[digest]

    def _queue(self, queue: list[Sequence], sequence: Sequence) -> None:
        insort(queue, sequence, key=self._ranks.__getitem__)
