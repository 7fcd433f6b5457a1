"""State of the replicas of a fleet, and their slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from woolly.cluster.launchers import ReplicaHandle, ReplicaLauncher
from woolly.cluster.pending_requests import PendingRequest
from woolly.llm.bit_identity import Identity
from woolly.runtime import is_gpu_backend

_MAX_PAUSE_SECONDS = 30.0  # restart delays in seconds of a replica that fails repeatedly
_SOUND = 30.0  # seconds of uptime after which a lost replica counts as one that worked


@dataclass(eq=False)
class ReplicaState:
    """State of a replica."""

    name: str
    launcher: ReplicaLauncher
    state: str = "starting"  # starting, ready, leaving, gone
    handle: ReplicaHandle | None = None
    hello: Mapping[str, Any] = field(default_factory=dict)  # first message of the replica
    figures: Mapping[str, Any] = field(default_factory=dict)  # metrics of the latest pong
    clock: float = 0.0  # clock offset in seconds; positive if ahead
    reason: str = ""  # reason of the end
    since: float = 0.0  # time when the replica was ready
    heard: float = 0.0
    asked: float = 0.0
    has_given: bool = False  # True if the replica has computed something
    pending: dict[int, PendingRequest] = field(default_factory=dict)


@dataclass
class ReplicaSlot:
    """Launcher, current replica, and time of the next start attempt."""

    launcher: ReplicaLauncher
    replica: ReplicaState | None = None
    has_settled: bool = False  # True if the first replica was ready or dropped
    n_failures: int = 0  # consecutive failures
    next_start: float = 0.0
    reason: str = ""  # reason of the last end

    def lose(self, now: float, *, was_ready: bool) -> None:
        """Schedule the successor of the replica: immediately if it worked, else after a doubling delay."""
        assert self.replica is not None
        self.reason, self.has_settled = self.replica.reason, True
        is_sound = self.replica.has_given or (was_ready and now - self.replica.since > _SOUND)
        self.n_failures = 1 if is_sound else self.n_failures + 1
        pause = 0.0 if self.n_failures == 1 else 0.25 * 2.0**self.n_failures
        self.next_start = now + min(_MAX_PAUSE_SECONDS, pause)

    def report(self, now: float) -> dict[str, Any]:
        """Return the state of the slot and its replica."""
        replica = self.replica
        state = "gone" if replica is None else replica.state
        report: dict[str, Any] = {"replica": self.launcher.name, "state": state, "open": 0}
        if replica is not None and replica.hello:
            report |= {name: replica.hello[name] for name in ("pid", "host", "version", "device", "level", "threads")}
            report |= {
                "open": len(replica.pending),
                "seconds": round(now - replica.since, 3),
                "clock_ahead": round(replica.clock, 3),
                "figures": dict(replica.figures),
            }
        if self.reason:
            report["last_loss"] = self.reason
        return report


def difference(known: Identity, other: Identity) -> str:
    """Return a message that explains how replicas differ in their bits."""
    names = {
        "arithmetic": "a different arithmetic (another version of Woolly)",
        "model": "a different model file or adapter",
        "backend": f"a different backend ({other.backend}, others have {known.backend})",
        "kv_type": "a different type of cache",
        "probe": "different bits for the same input (different CPU, kernels or C library)",
    }
    name = next(name for name in names if getattr(known, name) != getattr(other, name))
    sentence = f"it has {names[name]}: {other.id} instead of {known.id}"
    # Each replica puts as many layers on its GPU as fit, and a layer has different bits on a GPU and on a CPU.
    if name in ("backend", "probe") and any(is_gpu_backend(one.backend) for one in (known, other)):
        sentence += "; set the same number of GPU layers for all replicas (--gpu-layers N)"
    return sentence
