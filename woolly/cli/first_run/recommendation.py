"""The best small model that this machine runs fast enough for a conversation."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from woolly.cli.first_run.capacity import machine_capacity
from woolly.cli.first_run.state_file import is_here
from woolly.machine.background_load import OtherLoad
from woolly.store import Tag, find_in_catalogue, read_catalogue

_ENOUGH = 10.0  # tokens per second: about twice as fast as people read
_REACHED = 0.7  # part of the memory's bandwidth that answers of one sequence use, by the benchmarks
_MEGABYTES = 128
_MIN_SHARE = 0.4  # of the processor that counts as ours: less would make a guess of a measurement
_LINE = 12.5e6  # bytes per second of a connection of 100 Mbit/s


@dataclass(frozen=True)
class Recommendation:
    """A model of the catalogue, and how fast it would answer here."""

    name: str
    tag: Tag
    rate: float  # tokens per second, estimated
    is_here: bool = False  # whether its file is on this machine

    @property
    def is_fast(self) -> bool:
        """Returns whether it answers faster than people read."""
        return self.rate >= _ENOUGH

    @property
    def minutes(self) -> str:
        """Returns how long the download takes on a usual line: `4 min at 100 Mbit/s`."""
        seconds = self.tag.n_bytes / _LINE
        return f"{f'{seconds / 60:.0f} min' if seconds >= 90 else f'{seconds:.0f} s'} at 100 Mbit/s"


def recommend() -> Recommendation | None:
    """Returns the first suggestion of the catalogue that fits and is fast here; else the last that fits, or None."""
    from woolly.models import architectures

    capacity, runs = machine_capacity(), architectures()
    found = None
    for name in read_catalogue().suggested:
        named = find_in_catalogue(name)
        tag = None if named is None else named.size
        if tag is None or tag.architecture not in runs or capacity.fit(tag.n_bytes) != "yes":
            continue
        rate = _REACHED * _bandwidth(tag.n_bytes) / (tag.n_bytes * tag.n_active / tag.n_parameters)
        found = Recommendation(name, tag, rate, is_here(name))
        if found.is_fast:
            break
    return found


def _bandwidth(n_bytes: int) -> float:
    """Returns the bandwidth, in bytes per second, of the memory that would hold the model."""
    from woolly.cli.commands.show_gpu import detect_gpu

    card, _ = detect_gpu()
    if card is not None and card.bandwidth is not None and card.usable > 1.2 * n_bytes:
        return card.bandwidth
    return _measured()


@functools.cache
def _measured() -> float:
    """Returns the best of three measurements, as a quiet machine would give it: the others' share is added."""
    from woolly._native import measure_bandwidth
    from woolly.machine.cores import default_threads

    with OtherLoad() as others:
        best = max(measure_bandwidth(default_threads(), _MEGABYTES) for _ in range(3))
    return best * 1e9 / max(_MIN_SHARE, 1 - (others.share or 0.0))
