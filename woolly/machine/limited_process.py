"""Python subprocesses with memory and time limits, for untrusted input.

Threads cannot interrupt native code or survive its abort, so a subprocess runs it. The script is run by path, imports
nothing from woolly, and limits itself with `process_limits.py`, whose path is part of its input.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Event, Thread
from typing import IO, TYPE_CHECKING

from woolly.machine.apple import footprint

if TYPE_CHECKING:
    import subprocess

LIMITS = Path(__file__).with_name("process_limits.py")
_LOOK = 0.02  # polling interval for a child's memory in seconds; up to 100 MB can be allocated in between
_LOOK_FOR_CALLER = 0.25
_PIECE = 1 << 16  # bytes per read

# Environment variables for the child, as required by the dynamic loader. Keys and tokens are not passed on.
_NEEDED = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# Set when the client of the current context disconnects, which kills the children of the context.
abandoned: ContextVar[Event | None] = ContextVar("woolly_abandoned", default=None)


def can_start() -> bool:
    """Return True if there is an interpreter to start."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def run_limited(script: Path, order: bytes, *, memory: int, patience: float, max_output_bytes: int) -> bytes | None:
    """Return the output of a child process, or None if it failed, crashed or exceeded a limit.

    Raise OSError if it cannot start. `patience` is the time limit in seconds. The child limits its memory and CPU time,
    except on macOS. It is killed when `abandoned` is set.
    """
    import subprocess  # imported late: rarely used

    python = Path(sys.executable).absolute()
    with subprocess.Popen(
        [str(python), "-I", "-S", str(script.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
        cwd=python.anchor,
    ) as child:
        try:
            written = wait_for(child, order, memory=memory, patience=patience, max_output_bytes=max_output_bytes)
        except BaseException:
            child.kill()
            raise
    return written if child.returncode == 0 else None


def wait_for(
    child: subprocess.Popen[bytes], order: bytes, *, memory: int, patience: float, max_output_bytes: int
) -> bytes | None:
    """Send the input to a child and return its output when it ends.

    Kill the child and return None if it exceeds its time, memory or output limit.
    """
    from subprocess import TimeoutExpired

    assert child.stdin is not None and child.stdout is not None
    end, has_ended, is_killed = time.monotonic() + patience, Event(), Event()
    feeder = Thread(target=_feed, args=(child.stdin, order), daemon=True)
    watcher = Thread(target=_watch, args=(child, memory, end, has_ended, is_killed, abandoned.get()), daemon=True)
    feeder.start()
    watcher.start()
    try:
        written = _drain(child.stdout, max_output_bytes)
        if written is None:
            child.kill()
        else:
            with suppress(TimeoutExpired):  # the child closed its output but still runs
                child.wait(_until(end))
    finally:
        has_ended.set()
        watcher.join()
        if child.poll() is None:
            child.kill()
            written = None
        feeder.join()  # the pipe breaks when the child ends
    return None if is_killed.is_set() else written


def _feed(pipe: IO[bytes], order: bytes) -> None:
    with suppress(OSError):  # the child ended without reading all input
        try:
            pipe.write(order)
        finally:
            pipe.close()


def _drain(pipe: IO[bytes], most: int) -> bytes | None:
    """Return all output, or None if it exceeds `most` bytes."""
    written = bytearray()
    while piece := os.read(pipe.fileno(), _PIECE):
        written += piece
        if len(written) > most:
            return None
    return bytes(written)


def _watch(
    child: subprocess.Popen[bytes], memory: int, end: float, has_ended: Event, is_killed: Event, left: Event | None
) -> None:
    """Kill a child when it exceeds its limits or when the client disconnects."""
    # On Linux and Windows, the system limits memory. macOS cannot: each process maps hundreds of gigabytes.
    is_watched = sys.platform == "darwin"
    look = _LOOK if is_watched else _until(end) if left is None else _LOOK_FOR_CALLER
    while not has_ended.wait(min(look, _until(end))):
        is_late = time.monotonic() >= end or (left is not None and left.is_set())
        if is_late or (is_watched and footprint(child.pid) > memory):
            is_killed.set()
            child.kill()
            return


def _until(end: float) -> float:
    """Return the seconds until a time of the monotonic clock, at least 0."""
    return max(0.0, end - time.monotonic())
