"""Fleet: starts and monitors the replicas of a model, and moves the requests of lost replicas."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from woolly.cluster.launchers import ReplicaLauncher
from woolly.cluster.pending_requests import PendingRequest
from woolly.cluster.replica_state import ReplicaSlot, ReplicaState, difference
from woolly.cluster.replies import Hello, read_hello, read_metrics
from woolly.cluster.routing import Router
from woolly.cluster.serialization import PROTOCOL, read_error
from woolly.errors import ModelError
from woolly.llm.bit_identity import Identity
from woolly.wire import BadMessage, WireMessage

log = logging.getLogger("woolly.cluster")

_MAX_LOST_REPLICAS = 3  # replicas lost by a request before it is rejected as the cause
_CLOSING = 4.0  # seconds for a replica to write pages to disk and exit
_PAUSED = 0.5  # gap in monitoring, in seconds, that is not counted as silence of the replicas
_TURN = 0.05  # monitoring interval in seconds
_STRAGGLING = 60.0  # seconds to wait for slower replicas after the first is ready


class Fleet:
    """Replicas of a model. Thread-safe; a thread per replica reads its messages, another monitors all."""

    def __init__(
        self,
        launchers: Sequence[ReplicaLauncher],
        opening: Mapping[str, Any],
        *,
        n_parallel: int | None = None,
        stall: float = 10.0,
        grace: float = 30.0,
        load_limit: float = 1800.0,
    ) -> None:
        """`opening` has the fields of the message that opens the model; launchers add threads and CPUs.

        Replicas answer pings even while they compute, so a replica that is silent for `stall` seconds is dropped. A
        replica that does not open the model within `load_limit` seconds is dropped too. A leaving replica has `grace`
        seconds to finish its answers before the rest are moved.
        """
        self._slots = [ReplicaSlot(launcher) for launcher in launchers]
        self._opening = opening
        self._n_parallel = n_parallel
        self._stall = stall
        self._grace = grace
        self._load_limit = load_limit
        self._router = Router()
        self._replicas: dict[str, ReplicaState] = {}
        self._queued: list[PendingRequest] = []  # waiting for a replica
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._updating = threading.Lock()
        self._is_closed = False
        self.identity: Identity | None = None  # identity of all replicas
        self.counts: Counter[str] = Counter()  # moved, stalled, lost, refused, by_prefix, by_load

    def start(self) -> None:
        """Start all replicas and wait until most are ready. Raise ModelError if no replica is ready."""
        with self._lock:
            for slot in self._slots:
                self._spawn(slot)
        threading.Thread(target=self._watch, name="woolly-fleet", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self.n_ready or self._has_settled)
            self._changed.wait_for(lambda: self._has_settled, _STRAGGLING)
            if not self.n_ready and not self._is_closed:
                reason = next((slot.reason for slot in self._slots if slot.reason), "no replica became ready")
                error = ModelError(f"no replica is ready: {reason}")
                self.close()
                raise error

    def settle(self) -> None:
        """Wait until every replica is ready or dropped, at most `load_limit` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_settled)

    @property
    def n_ready(self) -> int:
        """Number of replicas that accept requests."""
        return len(self._router.replicas)

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._is_closed

    def add(self, pending: PendingRequest) -> None:
        """Assign a request to the replica with the lowest expected time to first token, or queue it."""
        with self._lock:
            if self._is_closed:
                pending.fail(None)
            else:
                self._assign(pending)

    def cancel(self, pending: PendingRequest) -> None:
        """Cancel an unfinished request."""
        with self._lock:
            if pending.is_over:
                return
            self.send(pending, pending.stop_message)
            self._release(pending)
            if pending in self._queued:
                self._queued.remove(pending)
            pending.fail(None)

    def send(self, pending: PendingRequest, message: WireMessage) -> bool:
        """Send a message to the replica of a request; return False if it has none."""
        with self._lock:
            replica = self._replicas.get(pending.ticket.replica) if pending.ticket is not None else None
            if replica is None or replica.pending.get(pending.id) is not pending or replica.handle is None:
                return False
            replica.handle.link.send(message)
            return True

    def report(self) -> list[dict[str, Any]]:
        """Return the state of each replica, by launcher."""
        now = time.monotonic()
        with self._lock:
            return [slot.report(now) for slot in self._slots]

    def update(self) -> bool:
        """Replace the replicas one by one, without interruption; return False if the update stopped.

        A replica is drained when its successor is ready. A successor with different bits stops the update.
        """
        with self._updating:
            log.info("update begins", extra={"replicas": len(self._slots)})
            for slot in self._slots:
                if not slot.launcher.can_update:
                    log.info("replica must be updated on its machine", extra={"replica": slot.launcher.name})
                elif not self._replace(slot):
                    return False
            log.info("update ended")
            return True

    def drain(self, replica: ReplicaState) -> None:
        """Let a replica finish answers within the grace period, move the rest, and stop the replica."""
        with self._changed:
            self._router.closed(replica.name)
            if replica.state == "ready":
                replica.state = "leaving"
            self._changed.wait_for(
                lambda: not replica.pending or replica.state == "gone" or self._is_closed, self._grace
            )
            if replica.state == "gone" or self._is_closed:
                return
            self._move_all(replica)
            if replica.handle is not None:
                replica.handle.link.send(WireMessage("close"))
            self._changed.wait_for(lambda: replica.state == "gone", _CLOSING)
        self._gone(replica, "left the cluster")

    def close(self) -> None:
        """Cancel all requests and stop the replicas."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for pending in [*self._queued, *(one for r in self._replicas.values() for one in r.pending.values())]:
                pending.fail(None)
            self._queued.clear()
            replicas = list(self._replicas.values())
            for replica in replicas:
                replica.pending.clear()
                if replica.handle is not None:
                    replica.handle.link.send(WireMessage("close"))
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(one.state == "gone" for one in replicas), _CLOSING)
        for replica in replicas:
            self._gone(replica, "the front was closed")

    # Start and monitor replicas.

    def _spawn(self, slot: ReplicaSlot, *, is_current: bool = True) -> ReplicaState:
        replica = ReplicaState(f"{slot.launcher.name}#{next(self._numbers)}", slot.launcher, heard=time.monotonic())
        self._replicas[replica.name] = replica
        if is_current:
            slot.replica = replica
        thread = threading.Thread(target=self._run, args=(replica,), name=f"woolly-replica-{replica.name}", daemon=True)
        thread.start()
        return replica

    def _run(self, replica: ReplicaState) -> None:
        try:
            handle = replica.launcher.start()
        except Exception as error:
            self._gone(replica, str(error) or type(error).__name__)
            return
        with self._lock:
            replica.handle = handle
            is_unwanted = self._is_closed or replica.state == "gone"
        if is_unwanted:
            handle.kill()
            self._gone(replica, "the front was closed")
            return
        handle.link.end_without(2 * self._stall)  # a replica is not pinged while it loads its model
        handle.link.send(WireMessage("open", {**replica.launcher.opening(self._opening), "stall": self._stall}))
        reason = "the process ended"
        try:
            for message in handle.link:
                self._take(replica, message)
        except BadMessage as error:
            reason = str(error)
        except Exception as error:
            reason = f"invalid message ({type(error).__name__}: {error})"
        self._gone(replica, reason)

    def _take(self, replica: ReplicaState, message: WireMessage) -> None:
        with self._lock:
            replica.heard = now = time.monotonic()
            kind = message.kind
            if kind in ("step", "rows", "progress", "reasoning"):
                self._advance(replica, message, now)
            elif kind == "pong":
                replica.figures, theirs = read_metrics(message)
                replica.clock = theirs - time.time()
            elif kind == "ready" and replica.state == "starting":
                self._join(replica, read_hello(message, PROTOCOL), now)
            elif kind == "failed":
                replica.reason = str(read_error(message.fields["error"]))
            elif kind == "leaving" and replica.state == "ready":
                self._in_background(lambda: self.drain(replica))
        if kind == "failed" or replica.reason:
            self._gone(replica, replica.reason)

    def _join(self, replica: ReplicaState, hello: Hello, now: float) -> None:
        if hello.identity is None:
            replica.reason = f"it has protocol {hello.protocol}, not {PROTOCOL}; install the same version"
        elif self.identity is None:
            self.identity = hello.identity
        elif hello.identity != self.identity:
            replica.reason = difference(self.identity, hello.identity)
        if replica.reason:
            self.counts["refused"] += 1
            log.warning("replica rejected", extra={"replica": replica.name, "reason": replica.reason})
            return
        replica.hello, replica.state, replica.since = hello.about, "ready", now
        replica.clock = hello.time - time.time()
        for slot in self._slots:
            slot.has_settled |= slot.replica is replica
        n_parallel = self._n_parallel or int(hello.about["n_parallel"])
        self._router.joined(replica.name, now, n_parallel=n_parallel, n_pages=hello.n_pages)
        about = {"replica": replica.name, "pid": hello.about["pid"], "host": hello.about["host"]}
        log.info("replica ready", extra=about)
        queued, self._queued = self._queued, []
        for pending in queued:
            self._assign(pending)
        self._changed.notify_all()

    def _watch(self) -> None:
        before = time.monotonic()
        while True:
            now = time.monotonic()
            silent: list[ReplicaState] = []
            with self._lock:
                if self._is_closed:
                    return
                for replica in self._replicas.values():
                    if now - before > _PAUSED:  # this process slept or was starved, so the silence does not count
                        replica.heard += now - before
                    is_starting = replica.state == "starting"
                    if now - replica.heard > (self._load_limit if is_starting else self._stall):
                        silent.append(replica)
                    elif not is_starting and replica.handle is not None and now - replica.asked > self._stall / 4:
                        replica.asked = now
                        replica.handle.link.send(WireMessage("ping"))
                for slot in self._slots:
                    if (slot.replica is None or slot.replica.state == "gone") and now >= slot.next_start:
                        self._spawn(slot)
            for replica in silent:
                self.counts["stalled"] += 1
                if replica.state == "starting":
                    self._gone(replica, f"the model did not open within {self._load_limit:g} seconds")
                else:
                    self._gone(replica, f"no response for {self._stall:g} seconds")
            before = now
            time.sleep(_TURN)

    def _gone(self, replica: ReplicaState, reason: str) -> None:
        """Drop a replica: stop it, move its requests, and schedule its successor."""
        now = time.monotonic()
        with self._lock:
            if replica.state == "gone":
                return
            has_left = replica.state == "leaving"
            was_ready, replica.state = has_left or replica.state == "ready", "gone"
            replica.reason = replica.reason or reason
            self._replicas.pop(replica.name, None)
            self._router.lost(replica.name)
            for slot in self._slots:
                if slot.replica is replica:
                    slot.lose(now, was_ready=was_ready)
                    if has_left:
                        log.info("replica left", extra={"replica": replica.name})
                    elif not self._is_closed:
                        self.counts["lost"] += 1
                        log.warning("replica lost", extra={"replica": replica.name, "reason": replica.reason})
            self._move_all(replica, is_lost=True)
            self._changed.notify_all()
        if replica.handle is not None:
            replica.handle.kill()

    def _replace(self, slot: ReplicaSlot) -> bool:
        with self._changed:
            if self._is_closed:
                return False
            new = self._spawn(slot, is_current=False)
            self._changed.wait_for(lambda: new.state != "starting" or self._is_closed)
            if self._is_closed:
                return False
            if new.state != "ready":
                log.warning("update stopped", extra={"replica": new.name, "reason": new.reason})
                return False
            old, slot.replica = slot.replica, new
        if old is not None:
            self.drain(old)
        return True

    # Pending requests.

    def _assign(self, pending: PendingRequest, without: Collection[str] = ()) -> None:
        now = time.monotonic()
        choice = self._router.choose(pending.pages, pending.n_tokens, now, without=without)
        if choice is None:
            self._queued.append(pending)
            return
        replica = self._replicas[choice.replica]
        assert replica.handle is not None
        pending.id = next(self._ids)
        pending.ticket = self._router.started(choice, pending.pages, pending.n_tokens, now)
        replica.pending[pending.id] = pending
        self.counts[f"by_{choice.reason}"] += 1
        replica.handle.link.send(pending.message())

    def _advance(self, replica: ReplicaState, message: WireMessage, now: float) -> None:
        pending = replica.pending.get(message.fields["id"])
        if pending is None:
            return  # cancelled or moved
        replica.has_given = True
        has_ended = pending.take(message)
        if pending.ticket is not None and ("tokens" in message.fields or has_ended):
            self._router.answering(pending.ticket, now)
        if has_ended:
            self._release(pending)
            if not pending.is_over:
                self.counts["moved"] += 1
                self._assign(pending, without={replica.name})

    def _release(self, pending: PendingRequest) -> None:
        if pending.ticket is not None:
            self._router.finished(pending.ticket, time.monotonic())
            replica = self._replicas.get(pending.ticket.replica)
            if replica is not None:
                replica.pending.pop(pending.id, None)
                self._changed.notify_all()

    def _move_all(self, replica: ReplicaState, *, is_lost: bool = False) -> None:
        moved, replica.pending = list(replica.pending.values()), {}
        for pending in moved:
            self._release(pending)
            pending.n_lost += is_lost
            if self._is_closed:
                pending.fail(None)
            elif pending.n_lost >= _MAX_LOST_REPLICAS:
                pending.fail(RuntimeError(f"{pending.n_lost} replicas crashed while computing this request"))
            else:
                self.counts["moved"] += 1
                self._assign(pending, without={replica.name})

    @property
    def _has_settled(self) -> bool:
        return self._is_closed or all(slot.has_settled for slot in self._slots)

    @staticmethod
    def _in_background(work: Callable[[], Any]) -> None:
        threading.Thread(target=work, name="woolly-drain", daemon=True).start()
