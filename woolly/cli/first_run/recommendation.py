"""Expected speed of the catalogue's models on this machine, and the models that are fast enough for a conversation."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woolly.cli.first_run.capacity import machine_capacity
from woolly.cli.first_run.state_file import is_here
from woolly.machine.background_load import OtherLoad
from woolly.machine.capacity import Capacity
from woolly.store import Tag, find_in_catalogue, read_catalogue
from woolly.store.names import choosable_sizes

if TYPE_CHECKING:
    from woolly.runtime import Gpu

ENOUGH = 10.0  # tokens per second; about twice the reading speed
_REACHED = 0.7  # share of the memory bandwidth reached by one sequence in benchmarks
_MEGABYTES = 128
_MIN_SHARE = 0.4  # minimum share of CPU time; with less, the measurement would be unreliable
_LINE = 12.5e6  # bytes per second of a 100 Mbit/s connection


@dataclass(frozen=True)
class Recommendation:
    """Model of the catalogue, and its estimated speed on this machine."""

    name: str
    tag: Tag
    rate: float  # estimated tokens per second
    is_here: bool = False  # the file is on this machine

    @property
    def is_fast(self) -> bool:
        """True if it generates faster than people read."""
        return self.rate >= ENOUGH

    @property
    def minutes(self) -> str:
        """Download time: `4 min at 100 Mbit/s`."""
        seconds = self.tag.n_bytes / _LINE
        return f"{f'{seconds / 60:.0f} min' if seconds >= 90 else f'{seconds:.0f} s'} at 100 Mbit/s"


def expected_rate(tag: Tag) -> float:
    """Return the expected tokens per second of one answer, from the memory bandwidth and the weights per token."""
    return _REACHED * _bandwidth(tag.n_bytes) / (tag.n_bytes * tag.n_active / tag.n_parameters)


def runs_well(tag: Tag, capacity: Capacity) -> bool:
    """True if a model fits and generates faster than people read."""
    from woolly.models import architectures

    fits = tag.architecture in architectures() and capacity.fit(tag.n_bytes) == "yes"
    return fits and expected_rate(tag) >= ENOUGH


def choose_size(name: str) -> str:
    """Return the largest size that runs well here for the bare name of a family of chat models.

    If no size does, this is the smallest size that fits. Other names, and families with a downloaded size, are returned
    unchanged.
    """
    sizes = choosable_sizes(name)
    if not sizes or is_here(name):
        return name
    capacity = machine_capacity()
    tags = [(entry.name, entry.size) for entry in sizes if entry.size is not None]
    good = [(tag.n_parameters, one) for one, tag in tags if runs_well(tag, capacity)]
    if good:
        most = max(n for n, _ in good)
        return next(one for n, one in good if n == most)
    fitting = [(tag.n_bytes, one) for one, tag in tags if capacity.fit(tag.n_bytes) == "yes"]
    return min(fitting)[1] if fitting else name


def recommend() -> Recommendation | None:
    """Return the first suggested model that fits and is fast, or else the last model that fits, or None."""
    from woolly.models import architectures

    capacity, runs = machine_capacity(), architectures()
    found = None
    for name in read_catalogue().suggested:
        named = find_in_catalogue(name)
        tag = None if named is None else named.size
        if tag is None or tag.architecture not in runs or capacity.fit(tag.n_bytes) != "yes":
            continue
        found = Recommendation(name, tag, expected_rate(tag), is_here(name))
        if found.is_fast:
            break
    return found


def _bandwidth(n_bytes: int) -> float:
    """Return the bandwidth, in bytes per second, of the memory that would contain the model."""
    card = _card()
    if card is not None and card.bandwidth is not None and card.usable > 1.2 * n_bytes:
        return card.bandwidth
    return _measured()


@functools.cache
def _card() -> Gpu | None:
    from woolly.cli.commands.show_gpu import detect_gpu

    return detect_gpu()[0]


@functools.cache
def _measured() -> float:
    """Return the best of three measurements, corrected for the CPU time of other programs."""
    from woolly._native import measure_bandwidth
    from woolly.machine.cores import default_threads

    with OtherLoad() as others:
        best = max(measure_bandwidth(default_threads(), _MEGABYTES) for _ in range(3))
    return best * 1e9 / max(_MIN_SHARE, 1 - (others.share or 0.0))
