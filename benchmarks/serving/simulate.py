"""Simulation of a fleet on a trace of requests: the Router of the server over simulated machines.

    python -m benchmarks.serving.simulate [--trace FILE] [--machines 100,1000] [--svg FILE]

Discrete events, no clock: results depend on the trace and the seed alone. A machine computes one prompt at a time at a
fixed rate, reads pages of its disk at another, and writes up to 16 answers at once, each at a fixed rate. It keeps what
it really computed, whatever the router believes. Nothing of a network, of decoding that slows down under load, or of
the quadratic part of attention is in it. Without --trace the requests are made up (benchmarks/serving/trace.py).
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import heapq
import itertools
import random
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.serving.trace import BLOCK, Asked, ideal_hits, made_up, read_trace
from benchmarks.versus.plots import Line, line_plot
from woolly.cluster.routing import Route, Router, Ticket

POLICIES = ("two at random", "hash", "router", "router + disk")
_ABSENT = 60.0  # seconds until a machine that was lost is back, with an empty cache


@dataclass(frozen=True)
class Fleet:
    """The machines; figures of an 8B model on 16 good cores, and of a SATA disk of 100 GB."""

    n: int
    prefill: float = 300.0  # tokens of prompts per second
    decode: float = 8.0  # tokens per second of one answer
    parallel: int = 16  # answers at once
    memory: int = 64  # blocks that a machine keeps
    disk: int = 0
    disk_rate: float = 3000.0  # tokens per second from disk
    slow: float = 0.0  # share of machines at half the rate
    deaths: float = 0.0  # share of machines that are lost in a minute


@dataclass
class _Job:
    asked: Asked
    n_done: int = 0  # tokens of the answer that the client has
    has_begun: bool = False
    ticket: Ticket | None = None
    since: float = 0.0  # when its answer began, or went on
    lives: int = 0  # of the machine that has it


@dataclass
class _Machine:
    name: str
    rate: float
    fleet: Fleet
    queue: deque[_Job] = field(default_factory=deque)
    computing: _Job | None = None
    answering: list[_Job] = field(default_factory=list)
    kept: OrderedDict[int, None] = field(default_factory=OrderedDict)
    on_disk: OrderedDict[int, None] = field(default_factory=OrderedDict)
    lives: int = 0
    is_here: bool = True

    @property
    def n_open(self) -> int:
        return len(self.queue) + (self.computing is not None) + len(self.answering)

    def known(self, blocks: Sequence[int]) -> tuple[int, int]:
        """Leading blocks in memory, and those after them on disk."""
        n_memory = sum(1 for _ in itertools.takewhile(self.kept.__contains__, blocks))
        n_disk = sum(1 for _ in itertools.takewhile(self.on_disk.__contains__, blocks[n_memory:]))
        return n_memory, n_disk

    def keep(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.on_disk.pop(block, None)
            self.kept[block] = None
            self.kept.move_to_end(block)
        while len(self.kept) > self.fleet.memory:
            self.on_disk[self.kept.popitem(last=False)[0]] = None
        while len(self.on_disk) > self.fleet.disk:
            self.on_disk.popitem(last=False)


@dataclass(frozen=True)
class Result:
    """Latencies and errors that the clients saw."""

    first: list[float]  # seconds to the first token of each request
    gaps: list[float]  # seconds that an answer stood still because its machine was lost
    hits: float  # share of tokens of prompts that were not computed
    n_lost: int  # machines
    n_unanswered: int
    choosing: float = field(compare=False)  # milliseconds of a core of this computer per choice of the router


class _Run:
    """One simulation."""

    def __init__(self, trace: Sequence[Asked], fleet: Fleet, policy: str, seed: int) -> None:
        self.fleet, self.policy = fleet, policy
        self.rng = random.Random(seed)
        rates = [fleet.prefill / (2 if i < fleet.slow * fleet.n else 1) for i in range(fleet.n)]
        self.machines = {f"m{i}": _Machine(f"m{i}", rate, fleet) for i, rate in enumerate(rates)}
        self.router = Router(page_tokens=BLOCK)
        for name in self.machines:
            self._join(name, 0.0)
        self.ring = sorted((_hash(f"{name} {i}"), name) for name in self.machines for i in range(20))
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.first: list[float] = []
        self.gaps: list[float] = []
        self.n_known = self.n_lost = self.n_open = 0
        self.choosing = 0.0
        self.waiting: list[_Job] = []  # that no machine could take
        for asked in trace:
            self._at(asked.at, lambda now, asked=asked: self._send(_Job(asked), now))  # type: ignore[misc]
        self.n_open = len(trace)
        if fleet.deaths:
            self._at(self.rng.expovariate(fleet.deaths * fleet.n / 60.0), self._lose_one)

    def run(self) -> None:
        while self.events and self.n_open:
            now, _, event = heapq.heappop(self.events)
            event(now)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), event))

    def _join(self, name: str, now: float) -> None:
        fleet = self.fleet
        self.router.joined(
            name,
            now,
            n_parallel=fleet.parallel,
            n_pages=fleet.memory,
            n_disk_pages=fleet.disk,
            rate=fleet.prefill,  # a guess; it measures
            disk_rate=fleet.disk_rate,
        )

    def _send(self, job: _Job, now: float) -> None:
        """Gives a request to a machine, as the policy says."""
        blocks, n_tokens = job.asked.blocks, job.asked.n_prompt + job.n_done
        choice = self._choose(blocks, n_tokens, now)
        if choice is None:
            self.waiting.append(job)
            return
        machine = self.machines[choice.replica]
        job.ticket = self.router.started(choice, blocks, n_tokens, now)
        job.lives = machine.lives
        machine.queue.append(job)
        self._go_on(machine, now)

    def _choose(self, blocks: Sequence[int], n_tokens: int, now: float) -> Route | None:
        here = [machine for machine in self.machines.values() if machine.is_here] if self.fleet.deaths else None
        if self.policy.startswith("router"):
            begin = time.thread_time()
            choice = self.router.choose(blocks, n_tokens, now)
            self.choosing += time.thread_time() - begin
            return choice
        able = here if here is not None else list(self.machines.values())
        if not able:
            return None
        if self.policy == "hash":
            names = {machine.name for machine in able}
            at = bisect.bisect(self.ring, (_hash(str(blocks[:2])), ""))
            name = next(name for _, name in (*self.ring[at:], *self.ring[:at]) if name in names)
        else:
            a, b = self.rng.choice(able), self.rng.choice(able)
            name = (a if a.n_open <= b.n_open else b).name
        return Route(name, 0, 0.0, self.policy)

    def _go_on(self, machine: _Machine, now: float) -> None:
        """Begins with the next prompt, if the machine can."""
        if machine.computing is not None or not machine.queue or len(machine.answering) >= machine.fleet.parallel:
            return
        job = machine.computing = machine.queue.popleft()
        n_tokens = job.asked.n_prompt + job.n_done
        n_memory, n_disk = machine.known(job.asked.blocks)
        # A page is read from disk only if that takes less time than to compute it.
        n_disk = n_disk if machine.fleet.disk_rate > machine.rate else 0
        n_known = min(n_tokens - 1, (n_memory + n_disk) * BLOCK)
        self.n_known += n_known if not job.n_done else 0
        seconds = n_disk * BLOCK / machine.fleet.disk_rate + (n_tokens - n_known) / machine.rate
        lives = machine.lives
        self._at(now + seconds, lambda now: self._begin_answer(machine, job, lives, now))

    def _begin_answer(self, machine: _Machine, job: _Job, lives: int, now: float) -> None:
        if lives != machine.lives:
            return  # the machine was lost meanwhile, and the request is elsewhere
        assert job.ticket is not None
        machine.computing = None
        machine.keep(job.asked.blocks)
        machine.answering.append(job)
        self.router.answering(job.ticket, now)
        if job.has_begun:
            self.gaps.append(now - job.since)
        else:
            self.first.append(now - job.asked.at)
            job.has_begun = True
        job.since = now
        left = (job.asked.n_answer - job.n_done) / machine.fleet.decode
        self._at(now + left, lambda now: self._end(machine, job, lives, now))
        self._go_on(machine, now)

    def _end(self, machine: _Machine, job: _Job, lives: int, now: float) -> None:
        if lives != machine.lives:
            return
        assert job.ticket is not None
        machine.answering.remove(job)
        self.router.finished(job.ticket, now)
        self.n_open -= 1
        self._go_on(machine, now)

    def _lose_one(self, now: float) -> None:
        """Loses a machine; its requests go on elsewhere, from the tokens that their clients have."""
        self._at(now + self.rng.expovariate(self.fleet.deaths * self.fleet.n / 60.0), self._lose_one)
        machine = self.rng.choice(list(self.machines.values()))
        if not machine.is_here:
            return
        self.n_lost += 1
        machine.is_here = False
        machine.lives += 1
        self.router.lost(machine.name)
        jobs = [*machine.answering, *([machine.computing] if machine.computing else []), *machine.queue]
        for job in machine.answering:
            job.n_done = min(job.asked.n_answer, job.n_done + int((now - job.since) * self.fleet.decode))
            job.since = now
        machine.answering, machine.computing, machine.queue = [], None, deque()
        machine.kept.clear()  # the disk stays
        for job in jobs:
            self._send(job, now)
        self._at(now + _ABSENT, lambda now: self._return(machine, now))

    def _return(self, machine: _Machine, now: float) -> None:
        machine.is_here = True
        self._join(machine.name, now)
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            self._send(job, now)


def simulate(trace: Sequence[Asked], fleet: Fleet, policy: str, seed: int = 0) -> Result:
    """Runs a trace to its end; "+ disk" gives each machine 1,200 blocks of disk."""
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r} is unknown; choose one of: {', '.join(POLICIES)}")
    run = _Run(trace, replace(fleet, disk=1200) if policy.endswith("+ disk") else fleet, policy, seed)
    run.run()
    hits = run.n_known / sum(asked.n_prompt for asked in trace)
    return Result(run.first, run.gaps, hits, run.n_lost, run.n_open, 1e3 * run.choosing / max(1, len(run.first)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def main() -> None:
    """Prints a table, and draws a plot of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="file of requests in Mooncake's format; default: made up")
    parser.add_argument("--machines", default="50,100,200,400,1000", help="numbers of machines")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--requests", type=int, help="the first of the trace; default: all")
    parser.add_argument("--slow", type=float, default=0.0, help="share of machines at half the rate")
    parser.add_argument("--deaths", type=float, default=0.0, help="share of machines that are lost in a minute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, help="file for the plot")
    options = parser.parse_args()
    trace = (made_up(options.seed) if options.trace is None else read_trace(options.trace))[: options.requests]
    kind = "made up" if options.trace is None else options.trace.name
    mean = statistics.fmean(asked.n_prompt for asked in trace)
    print(f"{len(trace)} requests ({kind}), {mean:.0f} tokens of a prompt on average, {100 * ideal_hits(trace):.1f} %")
    print("of them known to a cache without bounds\n")
    print("| policy | machines | first token: median, p99 (s) | hits | lost | stood still: p99 (s) | ms per choice |")
    print("|---|---|---|---|---|---|---|")
    lines = []
    for policy in options.policies.split(","):
        points = []
        for n in map(int, options.machines.split(",")):
            fleet = Fleet(n, slow=options.slow, deaths=options.deaths)
            got = simulate(trace, fleet, policy, options.seed)
            median, most = _quantile(got.first, 0.5), _quantile(got.first, 0.99)
            gap = f"{_quantile(got.gaps, 0.99):.0f} ({len(got.gaps)})"
            figures = f"{median:.0f}, {most:.0f} | {100 * got.hits:.0f} % | {got.n_lost} | {gap} | {got.choosing:.1f}"
            print(f"| {policy} | {n} | {figures} |", flush=True)
            points.append((float(n), median, median, median))
        lines.append(Line(policy, tuple(points)))
    if options.svg is not None:
        notes = [f"{len(trace)} requests in {trace[-1].at / 60:.0f} minutes, {kind}; simulated, not measured"]
        drawn = line_plot(
            "Seconds to the first token",
            notes,
            "machines",
            "median, seconds",
            [line for line in lines if line.name != "hash"],
        )
        options.svg.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
