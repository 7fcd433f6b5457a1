"""State of the replicas of a fleet, and the slots that they occupy."""

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
    """State of a replica, from its start to its end."""

    name: str
    launcher: ReplicaLauncher
    state: str = "starting"  # starting, ready, leaving, gone
    handle: ReplicaHandle | None = None
    hello: Mapping[str, Any] = field(default_factory=dict)  # its first message
    figures: Mapping[str, Any] = field(default_factory=dict)  # of its latest pong
    clock: float = 0.0  # clock offset in seconds; positive if ahead
    reason: str = ""  # reason of its end
    since: float = 0.0  # time when it was ready
    heard: float = 0.0
    asked: float = 0.0
    has_given: bool = False  # it has computed something
    pending: dict[int, PendingRequest] = field(default_factory=dict)


@dataclass
class ReplicaSlot:
    """Launcher, its current replica, and the time of the next start attempt."""

    launcher: ReplicaLauncher
    replica: ReplicaState | None = None
    has_settled: bool = False  # its first replica was ready or dropped
    n_failures: int = 0  # consecutive failures
    next_start: float = 0.0
    reason: str = ""  # reason of the last end

    def lose(self, now: float, *, was_ready: bool) -> None:
        """Schedule the successor of the replica: at once if it worked, else after a delay that doubles."""
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
    """Return a sentence about replicas that would give different answers."""
    names = {
        "arithmetic": "another arithmetic (its Woolly is of another version)",
        "model": "another model file or adapter",
        "backend": f"another backend ({other.backend}, the others {known.backend})",
        "kv_type": "another type of cache",
        "probe": "other bits for the same numbers (its CPU, its kernels or its C library differ)",
    }
    name = next(name for name in names if getattr(known, name) != getattr(other, name))
    sentence = f"it has {names[name]}: {other.id}, and the others are {known.id}"
    # Each replica takes the layers that fit its GPU, and a layer has other bits on a GPU than on a CPU.
    if name in ("backend", "probe") and any(is_gpu_backend(one.backend) for one in (known, other)):
        sentence += "; give all of them one number of layers for the GPU (--gpu-layers N)"
    return sentence
