"""Cores and memory sizes on Windows, from system functions that Python does not provide."""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

_RELATION_CORE = 0  # RelationProcessorCore
_THIS_PROCESS = ctypes.c_void_p(-1)  # result of GetCurrentProcess


class _Memory(ctypes.Structure):
    # MEMORYSTATUSEX
    _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in ("total", "free", "total_file", "free_file", "total_virtual", "free_virtual", "free_extended")
    ]


class _Counters(ctypes.Structure):
    # PROCESS_MEMORY_COUNTERS
    _fields_ = [("length", ctypes.c_uint32), ("faults", ctypes.c_uint32)] + [
        (name, ctypes.c_size_t)
        for name in ("peak", "now", "peak_paged", "paged", "peak_fixed", "fixed", "file", "peak_file")
    ]


def _kernel() -> Any:
    """Return the library of system functions."""
    if sys.platform == "win32":
        return ctypes.windll.kernel32
    raise OSError("this system is not Windows")


def total_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return int(_memory().total)


def free_bytes() -> int:
    """Return the free memory of the machine in bytes."""
    return int(_memory().free)


def _memory() -> _Memory:
    memory = _Memory(ctypes.sizeof(_Memory))
    _kernel().GlobalMemoryStatusEx(ctypes.byref(memory))
    return memory


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes."""
    counters = _Counters(ctypes.sizeof(_Counters))
    _kernel().K32GetProcessMemoryInfo(_THIS_PROCESS, ctypes.byref(counters), counters.length)
    return int(counters.peak)


def fast_cores() -> int | None:
    """Return the number of usable physical cores of the fastest type, or None if the system does not report them."""
    kernel = _kernel()
    size = ctypes.c_uint32(0)
    kernel.GetLogicalProcessorInformationEx(_RELATION_CORE, None, ctypes.byref(size))
    listing = ctypes.create_string_buffer(size.value)
    if not kernel.GetLogicalProcessorInformationEx(_RELATION_CORE, listing, ctypes.byref(size)):
        return None
    mine, all_of_them = ctypes.c_size_t(0), ctypes.c_size_t(0)
    kernel.GetProcessAffinityMask(_THIS_PROCESS, ctypes.byref(mine), ctypes.byref(all_of_them))
    return _count_fast(listing.raw[: size.value], mine.value) or None


def _count_fast(listing: bytes, allowed: int) -> int:
    """Count the cores of the highest efficiency class in a list of SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX.

    `allowed` is the CPU mask of the process; 0 if it has several groups of 64 CPUs and may use all.
    """
    cores: list[tuple[int, int, int]] = []  # efficiency class, group, mask of hyper-threads
    at = 0
    while at + 48 <= len(listing):
        relation, size = struct.unpack_from("<II", listing, at)
        if relation == _RELATION_CORE:
            efficiency = listing[at + 9]
            mask, group = struct.unpack_from("<QH", listing, at + 32)
            cores.append((efficiency, group, mask))
        at += max(size, 8)
    if allowed and len({group for _, group, _ in cores}) == 1:
        cores = [core for core in cores if core[2] & allowed]
    fastest = max((efficiency for efficiency, _, _ in cores), default=0)
    return sum(efficiency == fastest for efficiency, _, _ in cores)
