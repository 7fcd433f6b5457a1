"""The child process of a trial: compiles one grammar under limits. Run by path, it imports nothing of woolly.

Its standard input is one JSON object. Exit status 0: the grammar was compiled or refused within the limits.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
import threading
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Compiles the grammar of the standard input with a vocabulary of single bytes."""
    order = json.load(sys.stdin)
    _limit(order["memory"], order["seconds"])
    spec = importlib.util.spec_from_file_location("llguidance._lib", order["library"])
    assert spec is not None
    assert spec.loader is not None
    library: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)

    def work() -> None:
        limits = library.LLParserLimits(verbose_errors=False, **order["limits"])
        library.LLMatcher(library.LLTokenizer("byte"), order["grammar"], log_level=0, limits=limits)

    threading.stack_size(order["stack"])
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # if `work` raised, the parent meets the same error


def _limit(memory: int, seconds: int) -> None:
    if sys.platform == "win32":
        _limit_by_job(ctypes.windll.kernel32, memory, seconds)
        return
    import resource

    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
    if sys.platform != "darwin":  # there a process maps more than any limit from its start; the parent looks instead
        limits[resource.RLIMIT_AS] = memory
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    os.nice(5)


class _Limits(ctypes.Structure):
    # JOBOBJECT_EXTENDED_LIMIT_INFORMATION, whose first nine fields are JOBOBJECT_BASIC_LIMIT_INFORMATION.
    _fields_ = [
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("least_working_set", ctypes.c_size_t),
        ("most_working_set", ctypes.c_size_t),
        ("most_processes", ctypes.c_uint32),
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
    """Puts this process into a job with limits of Windows. OSError if the system refuses."""
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
        raise OSError("the system refuses a limit of this process")


if __name__ == "__main__":
    main()
