"""Default number of compute threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from woolly.machine import apple, windows


def default_threads() -> int:
    """Return the number of usable physical cores, within CPU affinity and cgroup quota.

    On macOS and Windows, only cores of the fastest type count: at each barrier, all threads wait for the slowest.
    """
    if sys.platform == "darwin":
        return apple.fast_cores() or os.cpu_count() or 1
    if sys.platform == "win32":
        return windows.fast_cores() or os.cpu_count() or 1
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, min(len(cores), _quota()))


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> int:
    """Return the cgroup's CPU quota, rounded to CPUs, or a large number if there is no quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):
        return 1 << 20
