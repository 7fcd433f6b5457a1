"""Members of a fleet: replicas from their start to their end, and the places that they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from woolly.cluster.flights import Flight
from woolly.cluster.seats import Seat, Started
from woolly.llm.identity import Identity
from woolly.runtime import is_gpu_backend


@dataclass(eq=False)
class Member:
    """A replica, from its start to its end."""

    name: str
    seat: Seat
    state: str = "starting"  # starting, ready, leaving, gone
    started: Started | None = None
    hello: Mapping[str, Any] = field(default_factory=dict)  # what it said when it was ready
    figures: Mapping[str, Any] = field(default_factory=dict)  # of its latest pong
    clock: float = 0.0  # seconds by which its clock is ahead of ours
    reason: str = ""  # why it is gone
    since: float = 0.0  # when it was ready
    heard: float = 0.0
    asked: float = 0.0
    has_given: bool = False  # whether it computed anything
    flights: dict[int, Flight] = field(default_factory=dict)


@dataclass
class Occupancy:
    """A seat, who sits there, and when the next one may."""

    seat: Seat
    member: Member | None = None
    has_settled: bool = False  # whether its first replica was ready or given up
    n_failures: int = 0  # one after another
    next_start: float = 0.0
    reason: str = ""  # why the last one left

    def told(self, now: float) -> dict[str, Any]:
        """Returns what is known of it and of its replica."""
        member = self.member
        state = "gone" if member is None else member.state
        told: dict[str, Any] = {"replica": self.seat.name, "state": state, "open": 0}
        if member is not None and member.hello:
            told |= {name: member.hello[name] for name in ("pid", "host", "version", "device", "level", "threads")}
            told |= {
                "open": len(member.flights),
                "seconds": round(now - member.since, 3),
                "clock_ahead": round(member.clock, 3),
                "figures": dict(member.figures),
            }
        if self.reason:
            told["last_loss"] = self.reason
        return told


def difference(known: Identity, other: Identity) -> str:
    """Returns one sentence about replicas that would give different answers."""
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
