"""NUMA nodes: CPUs with local memory."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = _FOLDER) -> list[list[int]]:
    """Return the CPUs per NUMA node that this process may use; a single node if the system reports none."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    found = []
    for path in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            cpus = sorted(cpu_list((path / "cpulist").read_text()) & allowed)
        except (OSError, ValueError):
            continue
        if cpus:
            found.append(cpus)
    return found or [sorted(allowed)]


def cpu_list(text: str) -> set[int]:
    """Return the numbers in a list such as 0-3,8."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found
