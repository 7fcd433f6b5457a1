"""Cores, memory and processes on macOS, from system functions that Python does not provide."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_HOST_VM_INFO64 = 4
_RUSAGE_INFO_V0 = 0


class _Pages(ctypes.Structure):
    # First version of vm_statistics64 in <mach/vm_statistics.h>, which all versions of macOS fill.
    _fields_ = (
        [(name, ctypes.c_uint32) for name in ("free", "active", "inactive", "wired")]
        + [
            (name, ctypes.c_uint64)
            for name in (
                "zero_fill",
                "reactivations",
                "pageins",
                "pageouts",
                "faults",
                "cow_faults",
                "lookups",
                "hits",
                "purges",
            )
        ]
        + [(name, ctypes.c_uint32) for name in ("purgeable", "speculative")]
        + [(name, ctypes.c_uint64) for name in ("decompressions", "compressions", "swapins", "swapouts")]
        + [(name, ctypes.c_uint32) for name in ("compressor", "throttled", "external", "internal")]
        + [("uncompressed", ctypes.c_uint64)]
    )


class _Usage(ctypes.Structure):
    # rusage_info_v0 in <sys/resource.h>
    _fields_ = [("uuid", ctypes.c_uint8 * 16)] + [
        (name, ctypes.c_uint64)
        for name in (
            "user_time",
            "system_time",
            "idle_wakeups",
            "interrupt_wakeups",
            "pageins",
            "wired",
            "resident",
            "footprint",
            "start",
            "exit",
        )
    ]


@cache
def _system() -> Any:
    """Return the C library, which includes kernel and libproc functions."""
    return ctypes.CDLL(None)


def fast_cores() -> int | None:
    """Return the number of physical cores of the fastest type, or None if unknown."""
    for name in (b"hw.perflevel0.physicalcpu", b"hw.physicalcpu"):
        value, size = ctypes.c_int32(), ctypes.c_size_t(4)
        failed = _system().sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        if not failed and value.value > 0:
            return value.value
    return None


def free_pages() -> int | None:
    """Return the number of free or reclaimable pages (file cache and purgeable memory), or None if unknown.

    Inactive pages are excluded: many contain program data that would have to be compressed or swapped out.
    """
    system = _system()
    system.mach_host_self.restype = ctypes.c_uint32
    pages = _Pages()
    count = ctypes.c_uint32(ctypes.sizeof(_Pages) // 4)
    host = ctypes.c_uint32(system.mach_host_self())
    if system.host_statistics64(host, _HOST_VM_INFO64, ctypes.byref(pages), ctypes.byref(count)) != 0:
        return None
    return int(pages.free + pages.external + pages.purgeable)


def footprint(pid: int) -> int:
    """Return the memory of a process of the same user in bytes; 0 if it has ended."""
    usage = _Usage()
    failed = _system().proc_pid_rusage(pid, _RUSAGE_INFO_V0, ctypes.byref(usage))
    return 0 if failed else int(usage.footprint)


def child_ids(pid: int) -> list[int]:
    """Return the unreaped child processes of a process."""
    most = 64
    while True:
        found = (ctypes.c_int32 * most)()
        count = _system().proc_listchildpids(pid, found, ctypes.sizeof(found))
        if count < most:
            return [int(child) for child in found[: max(0, count)]]
        most *= 2  # a full list may be incomplete
