"""Memory of this machine and process."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from contextlib import suppress
from pathlib import Path

from woolly.machine.apple import free_pages
from woolly.machine.windows import free_bytes, peak_bytes, total_bytes


def available_memory() -> int:
    """Return the bytes that this process can still allocate, within the limits of machine, cgroup and process."""
    return int(min(_machine_memory(), _own_memory()))


def total_memory() -> int:
    """Return the memory of the machine in bytes, within the limits of cgroup and process."""
    if sys.platform == "win32":
        return total_bytes()
    import resource

    total: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max" is not a number
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return int(total if limit == resource.RLIM_INFINITY else min(total, limit))


def _own_memory() -> float:
    """Return the bytes left by `ulimit -v`, or infinity if there is no limit."""
    if sys.platform == "win32":
        return math.inf
    import resource

    limit, used = resource.getrlimit(resource.RLIMIT_AS)[0], _status_mib("VmSize")
    return math.inf if limit == resource.RLIM_INFINITY or used is None else max(0, limit - int(used * (1 << 20)))


def _machine_memory() -> int:
    """Return the bytes left by the machine or the cgroup."""
    if sys.platform == "win32":
        return free_bytes()
    if sys.platform == "darwin" and (pages := free_pages()) is not None:
        return pages * os.sysconf("SC_PAGE_SIZE")
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        return available if limit == "max" else max(0, min(available, int(limit) - used))
    except (OSError, ValueError):
        return available


def peak_mib() -> float:
    """Return the peak memory of this process in MiB, including mapped files."""
    # Not getrusage on Linux, which includes the parent from which the process was forked.
    if (peak := _status_mib("VmHWM")) is not None:
        return peak
    if sys.platform == "win32":
        return peak_bytes() / (1 << 20)
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def reset_peak() -> bool:
    """Free unused memory and reset the peak; return False if the system does not support it."""
    gc.collect()
    with suppress(AttributeError, OSError, TypeError):  # the C library may not have this function
        # Freed memory is not always returned to the system and would count in the next measurement.
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    peak, resident = _status_mib("VmHWM"), _status_mib("VmRSS")
    # Some systems accept the request without effect. Both values are counted per thread and only synchronized at times.
    return peak is not None and resident is not None and peak < resident + 4


def _status_mib(name: str) -> float | None:
    """Return a size of this process, as reported by Linux, or None."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), None)
