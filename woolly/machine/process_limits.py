"""Limits of a process for itself: memory, CPU time and priority. Subprocesses run this file by path, without woolly."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any


def limit_process(memory: int, seconds: int) -> None:
    """Limit memory and CPU time of this process, and lower its priority."""
    if sys.platform == "win32":
        _limit_by_job(ctypes.windll.kernel32, memory, seconds)
        return
    import resource

    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
    if sys.platform != "darwin":  # on macOS, every process maps more than any limit; the parent checks memory instead
        limits[resource.RLIMIT_AS] = memory
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    os.nice(5)


class _Limits(ctypes.Structure):
    # JOBOBJECT_EXTENDED_LIMIT_INFORMATION; its first nine fields are JOBOBJECT_BASIC_LIMIT_INFORMATION.
    _fields_ = [
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("min_working_set", ctypes.c_size_t),
        ("max_working_set", ctypes.c_size_t),
        ("max_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
        ("counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    ]


_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_PROCESS_TIME, _PRIORITY, _PROCESS_MEMORY, _NO_DIALOG = 0x2, 0x20, 0x100, 0x400
_BELOW_NORMAL = 0x4000


def _limit_by_job(kernel: Any, memory: int, seconds: int) -> None:
    """Assign this process to a Windows job with limits. Raise OSError if the system rejects them."""
    kernel.CreateJobObjectW.restype = ctypes.c_void_p
    job = ctypes.c_void_p(kernel.CreateJobObjectW(None, None))
    limits = _Limits(process_time=seconds * 10_000_000, process_memory=memory, priority=_BELOW_NORMAL)
    limits.flags = _PROCESS_TIME | _PRIORITY | _PROCESS_MEMORY | _NO_DIALOG
    size = ctypes.sizeof(limits)
    this_process = ctypes.c_void_p(-1)
    if (
        not job
        or not kernel.SetInformationJobObject(job, _EXTENDED_LIMITS, ctypes.byref(limits), size)
        or not kernel.AssignProcessToJobObject(job, this_process)
    ):
        raise OSError("the system rejected the limits of this process")
