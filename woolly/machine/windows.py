"""Sizes of memory from the functions of Windows, because Python has none. Zero on other systems."""

from __future__ import annotations

import sys

__all__ = ["free_bytes", "peak_bytes", "total_bytes"]

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    class _Memory(ctypes.Structure):
        # MEMORYSTATUSEX
        _fields_ = [("length", wintypes.DWORD), ("load", wintypes.DWORD)] + [
            (name, ctypes.c_uint64)
            for name in ("total", "free", "total_file", "free_file", "total_virtual", "free_virtual", "free_extended")
        ]

    class _Counters(ctypes.Structure):
        # PROCESS_MEMORY_COUNTERS
        _fields_ = [("length", wintypes.DWORD), ("faults", wintypes.DWORD)] + [
            (name, ctypes.c_size_t)
            for name in ("peak", "now", "peak_paged", "paged", "peak_fixed", "fixed", "file", "peak_file")
        ]

    def free_bytes() -> int:
        """Bytes of the machine's memory that are free."""
        memory = _Memory(ctypes.sizeof(_Memory))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(memory))
        return int(memory.free)

    def total_bytes() -> int:
        """Bytes of memory that the machine has."""
        memory = _Memory(ctypes.sizeof(_Memory))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(memory))
        return int(memory.total)

    def peak_bytes() -> int:
        """The most memory that this process held at once."""
        counters = _Counters(ctypes.sizeof(_Counters))
        ask = ctypes.windll.kernel32.K32GetProcessMemoryInfo
        ask(wintypes.HANDLE(-1), ctypes.byref(counters), counters.length)
        return int(counters.peak)

else:

    def free_bytes() -> int:
        """Asked on Windows alone."""
        return 0

    def total_bytes() -> int:
        """Asked on Windows alone."""
        return 0

    def peak_bytes() -> int:
        """Asked on Windows alone."""
        return 0
