"""The Fleet: replicas of one model; it starts and watches them, and moves what a lost one was computing."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from woolly.cluster.flights import Flight
from woolly.cluster.members import Member, Occupancy, difference
from woolly.cluster.replies import Hello, read_figures, read_hello
from woolly.cluster.routing import Router
from woolly.cluster.seats import Seat
from woolly.cluster.wire import PROTOCOL, read_error
from woolly.errors import ModelError
from woolly.llm.identity import Identity
from woolly.wire import BadMessage, WireMessage

log = logging.getLogger("woolly.cluster")

_MOST_LOST = 3  # replicas that one request may lose before it is taken to be the cause
_LONGEST_PAUSE = 30.0  # seconds before a replica that fails again and again is started once more
_SOUND = 30.0  # seconds after which a replica that gave nothing and was lost counts as one that worked
_CLOSING = 4.0  # seconds that a replica has to write pages to disk and end
_PAUSED = 0.5  # seconds without a look at the replicas that are not held against them
_TURN = 0.05  # seconds between two looks at the replicas
_STRAGGLING = 60.0  # seconds that a fleet waits for its other replicas when one is ready; they join when they are


class Fleet:
    """Any thread may call it. A thread for each replica reads what it says; one more looks after all of them."""

    def __init__(
        self,
        seats: Sequence[Seat],
        opening: Mapping[str, Any],
        *,
        n_parallel: int | None = None,
        stall: float = 10.0,
        grace: float = 30.0,
        load_limit: float = 1800.0,
    ) -> None:
        """`opening` has the fields of the message that opens the model; a seat adds its threads and CPUs.

        A replica that is silent for `stall` seconds is given up: pings are answered also while it computes. So is one
        that has not opened the model after `load_limit` seconds. One that leaves has `grace` seconds to finish its
        answers, then the rest is moved.
        """
        self._places = [Occupancy(seat) for seat in seats]
        self._opening = opening
        self._n_parallel = n_parallel
        self._stall = stall
        self._grace = grace
        self._load_limit = load_limit
        self._router = Router()
        self._members: dict[str, Member] = {}
        self._waiting: list[Flight] = []  # for a replica
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._updating = threading.Lock()
        self._is_closed = False
        self.identity: Identity | None = None  # of all replicas
        self.counts: Counter[str] = Counter()  # moved, stalled, lost, refused, by_prefix, by_load

    def start(self) -> None:
        """Starts all replicas and waits for them, but not long for the slowest. Raises the reason if none can serve."""
        with self._lock:
            for place in self._places:
                self._spawn(place)
        threading.Thread(target=self._watch, name="woolly-fleet", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self.n_ready or self._has_settled)
            self._changed.wait_for(lambda: self._has_settled, _STRAGGLING)
            if not self.n_ready and not self._is_closed:
                reason = next((place.reason for place in self._places if place.reason), "none was ready")
                error = ModelError(f"no replica can serve: {reason}")
                self.close()
                raise error

    def settle(self) -> None:
        """Waits until every replica was ready or given up, which takes `load_limit` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_settled)

    @property
    def n_ready(self) -> int:
        """Returns the number of replicas that take requests."""
        return len(self._router.replicas)

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing more."""
        return self._is_closed

    def add(self, flight: Flight) -> None:
        """Gives it to the replica that begins it soonest; if none is ready, to the first that is."""
        with self._lock:
            if self._is_closed:
                flight.fail(None)
            else:
                self._give(flight)

    def cancel(self, flight: Flight) -> None:
        """Ends it, unless it has ended."""
        with self._lock:
            if flight.is_over:
                return
            self.tell(flight, flight.stop_message)
            self._release(flight)
            if flight in self._waiting:
                self._waiting.remove(flight)
            flight.fail(None)

    def tell(self, flight: Flight, message: WireMessage) -> bool:
        """Sends a message to the replica that computes it; False if none does."""
        with self._lock:
            member = self._members.get(flight.ticket.replica) if flight.ticket is not None else None
            if member is None or member.flights.get(flight.id) is not flight or member.started is None:
                return False
            member.started.link.send(message)
            return True

    def report(self) -> list[dict[str, Any]]:
        """Returns what is known of each replica, by seat."""
        now = time.monotonic()
        with self._lock:
            return [place.told(now) for place in self._places]

    def update(self) -> bool:
        """Replaces the replicas one by one, each when its successor is ready; answers go on. False if it stopped.

        A successor with other bits is refused, and the replicas stay as they are.
        """
        with self._updating:
            log.info("update begins", extra={"replicas": len(self._places)})
            for place in self._places:
                if not place.seat.can_update:
                    log.info("replica is updated where it runs", extra={"replica": place.seat.name})
                elif not self._replace(place):
                    return False
            log.info("update ended")
            return True

    def drain(self, member: Member) -> None:
        """Lets a replica finish its answers within the grace period, moves what is left, and ends it."""
        with self._changed:
            self._router.closed(member.name)
            if member.state == "ready":
                member.state = "leaving"
            self._changed.wait_for(lambda: not member.flights or member.state == "gone" or self._is_closed, self._grace)
            if member.state == "gone" or self._is_closed:
                return
            self._move_all(member)
            if member.started is not None:
                member.started.link.send(WireMessage("close"))
            self._changed.wait_for(lambda: member.state == "gone", _CLOSING)
        self._gone(member, "it left")

    def close(self) -> None:
        """Cancels all that runs and ends the replicas."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for flight in [*self._waiting, *(f for one in self._members.values() for f in one.flights.values())]:
                flight.fail(None)
            self._waiting.clear()
            members = list(self._members.values())
            for member in members:
                member.flights.clear()
                if member.started is not None:
                    member.started.link.send(WireMessage("close"))
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(one.state == "gone" for one in members), _CLOSING)
        for member in members:
            self._gone(member, "the fleet was closed")

    # Starting and watching.

    def _spawn(self, place: Occupancy, *, sits: bool = True) -> Member:
        member = Member(f"{place.seat.name}#{next(self._numbers)}", place.seat, heard=time.monotonic())
        self._members[member.name] = member
        if sits:
            place.member = member
        thread = threading.Thread(target=self._run, args=(member,), name=f"woolly-replica-{member.name}", daemon=True)
        thread.start()
        return member

    def _run(self, member: Member) -> None:
        try:
            started = member.seat.start()
        except Exception as error:
            self._gone(member, str(error) or type(error).__name__)
            return
        with self._lock:
            member.started = started
            is_unwanted = self._is_closed or member.state == "gone"
        if is_unwanted:
            started.kill()
            self._gone(member, "the fleet was closed")
            return
        options = dict(self._opening["options"])
        if member.seat.threads is not None:
            options["threads"] = member.seat.threads
        if member.seat.device is not None:
            options["device"] = member.seat.device
        opening = {**self._opening, "options": options, "cpus": member.seat.cpus, "stall": self._stall}
        started.link.end_without(2 * self._stall)  # one that opens its model is not asked for signs of life
        started.link.send(WireMessage("open", opening))
        reason = "it ended"
        try:
            for message in started.link:
                self._take(member, message)
        except BadMessage as error:
            reason = str(error)
        except Exception as error:
            reason = f"what it says cannot be understood ({type(error).__name__}: {error})"
        self._gone(member, reason)

    def _take(self, member: Member, message: WireMessage) -> None:
        with self._lock:
            member.heard = now = time.monotonic()
            kind = message.kind
            if kind in ("step", "rows", "progress", "thought"):
                self._advance(member, message, now)
            elif kind == "pong":
                member.figures, theirs = read_figures(message)
                member.clock = theirs - time.time()
            elif kind == "ready" and member.state == "starting":
                self._join(member, read_hello(message, PROTOCOL), now)
            elif kind == "failed":
                member.reason = str(read_error(message.fields["error"]))
            elif kind == "leaving" and member.state == "ready":
                self._in_background(lambda: self.drain(member))
        if kind == "failed" or member.reason:
            self._gone(member, member.reason)

    def _join(self, member: Member, hello: Hello, now: float) -> None:
        if hello.identity is None:
            member.reason = f"it speaks protocol {hello.protocol}, and this front {PROTOCOL}; use one version"
        elif self.identity is None:
            self.identity = hello.identity
        elif hello.identity != self.identity:
            member.reason = difference(self.identity, hello.identity)
        if member.reason:
            self.counts["refused"] += 1
            log.warning("replica refused", extra={"replica": member.name, "reason": member.reason})
            return
        member.hello, member.state, member.since = hello.about, "ready", now
        member.clock = hello.time - time.time()
        for place in self._places:
            place.has_settled |= place.member is member
        at_once = self._n_parallel or int(hello.about["n_parallel"])
        self._router.joined(member.name, now, n_parallel=at_once, n_pages=hello.n_pages)
        about = {"replica": member.name, "pid": hello.about["pid"], "host": hello.about["host"]}
        log.info("replica ready", extra=about)
        waiting, self._waiting = self._waiting, []
        for flight in waiting:
            self._give(flight)
        self._changed.notify_all()

    def _watch(self) -> None:
        before = time.monotonic()
        while True:
            now = time.monotonic()
            silent: list[Member] = []
            with self._lock:
                if self._is_closed:
                    return
                for member in self._members.values():
                    if now - before > _PAUSED:  # this process slept, or had no core: the silence was its own
                        member.heard += now - before
                    is_starting = member.state == "starting"
                    if now - member.heard > (self._load_limit if is_starting else self._stall):
                        silent.append(member)
                    elif not is_starting and member.started is not None and now - member.asked > self._stall / 4:
                        member.asked = now
                        member.started.link.send(WireMessage("ping"))
                for place in self._places:
                    if (place.member is None or place.member.state == "gone") and now >= place.next_start:
                        self._spawn(place)
            for member in silent:
                self.counts["stalled"] += 1
                if member.state == "starting":
                    self._gone(member, f"it did not open its model within {self._load_limit:g} seconds")
                else:
                    self._gone(member, f"it was silent for {self._stall:g} seconds")
            before = now
            time.sleep(_TURN)

    def _gone(self, member: Member, reason: str) -> None:
        """Gives up a replica: ends it, moves what it computed, and plans its successor."""
        now = time.monotonic()
        with self._lock:
            if member.state == "gone":
                return
            has_left = member.state == "leaving"
            was_ready, member.state = has_left or member.state == "ready", "gone"
            member.reason = member.reason or reason
            self._members.pop(member.name, None)
            self._router.lost(member.name)
            for place in self._places:
                if place.member is member:
                    place.reason, place.has_settled = member.reason, True
                    is_sound = member.has_given or (was_ready and now - member.since > _SOUND)
                    place.n_failures = 1 if is_sound else place.n_failures + 1
                    pause = 0.0 if place.n_failures == 1 else 0.25 * 2.0**place.n_failures
                    place.next_start = now + min(_LONGEST_PAUSE, pause)
                    if has_left:
                        log.info("replica left", extra={"replica": member.name})
                    elif not self._is_closed:
                        self.counts["lost"] += 1
                        log.warning("replica lost", extra={"replica": member.name, "reason": member.reason})
            self._move_all(member, is_lost=True)
            self._changed.notify_all()
        if member.started is not None:
            member.started.kill()

    def _replace(self, place: Occupancy) -> bool:
        with self._changed:
            if self._is_closed:
                return False
            new = self._spawn(place, sits=False)
            self._changed.wait_for(lambda: new.state != "starting" or self._is_closed)
            if self._is_closed:
                return False
            if new.state != "ready":
                log.warning("update stopped", extra={"replica": new.name, "reason": new.reason})
                return False
            old, place.member = place.member, new
        if old is not None:
            self.drain(old)
        return True

    # Flights.

    def _give(self, flight: Flight, without: Collection[str] = ()) -> None:
        now = time.monotonic()
        choice = self._router.choose(flight.pages, flight.n_tokens, now, without=without)
        if choice is None:
            self._waiting.append(flight)
            return
        member = self._members[choice.replica]
        assert member.started is not None
        flight.id = next(self._ids)
        flight.ticket = self._router.started(choice, flight.pages, flight.n_tokens, now)
        member.flights[flight.id] = flight
        self.counts[f"by_{choice.reason}"] += 1
        member.started.link.send(flight.message())

    def _advance(self, member: Member, message: WireMessage, now: float) -> None:
        flight = member.flights.get(message.fields["id"])
        if flight is None:
            return  # cancelled, or moved
        member.has_given = True
        has_ended = flight.take(message)
        if flight.ticket is not None and ("tokens" in message.fields or has_ended):
            self._router.answering(flight.ticket, now)
        if has_ended:
            self._release(flight)
            if not flight.is_over:
                self.counts["moved"] += 1
                self._give(flight, without={member.name})

    def _release(self, flight: Flight) -> None:
        if flight.ticket is not None:
            self._router.finished(flight.ticket, time.monotonic())
            member = self._members.get(flight.ticket.replica)
            if member is not None:
                member.flights.pop(flight.id, None)
                self._changed.notify_all()

    def _move_all(self, member: Member, *, is_lost: bool = False) -> None:
        flights, member.flights = list(member.flights.values()), {}
        for flight in flights:
            self._release(flight)
            flight.n_lost += is_lost
            if self._is_closed:
                flight.fail(None)
            elif flight.n_lost >= _MOST_LOST:
                flight.fail(RuntimeError(f"{flight.n_lost} replicas ended while they computed this request"))
            else:
                self.counts["moved"] += 1
                self._give(flight, without={member.name})

    @property
    def _has_settled(self) -> bool:
        return self._is_closed or all(place.has_settled for place in self._places)

    @staticmethod
    def _in_background(work: Callable[[], Any]) -> None:
        threading.Thread(target=work, name="woolly-drain", daemon=True).start()
