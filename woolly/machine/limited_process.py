"""Bounded children: a process of Python's own that does one dangerous thing under limits of memory and time.

No thread can stop native code that loops, or survive its abort, so a child does such work. Its script is run by path,
imports nothing of woolly, and limits itself by `process_limits.py`, whose path its order names.
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
_LOOK = 0.02  # seconds between two looks at a child's memory: enough for 100 MB more at the speed of memory
_LOOK_FOR_CALLER = 0.25
_PIECE = 1 << 16  # bytes that are read at once

# What the child's environment has of this one: what a loader of libraries needs. Keys and tokens stay here.
_NEEDED = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# Set when the caller of the current context has gone, such as a client; its children are killed then.
abandoned: ContextVar[Event | None] = ContextVar("woolly_abandoned", default=None)


def can_start() -> bool:
    """Return True if there is an interpreter to start."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def run_limited(script: Path, order: bytes, *, memory: int, patience: float, max_output_bytes: int) -> bytes | None:
    """Returns what a child wrote; None if it failed, crashed, or passed a limit. OSError if no process can start.

    `patience` are seconds on the clock, `max_output_bytes` bytes. The child limits its memory and its processor time by
    itself, except on macOS. It is killed if `abandoned` is set.
    """
    import subprocess  # few starts need it

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
    """Hands the order to a child and returns what it wrote, at its end.

    Kills it, and returns None, if it takes too long or too much memory, or writes too much.
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
            with suppress(TimeoutExpired):  # it has closed its output, and goes on
                child.wait(_until(end))
    finally:
        has_ended.set()
        watcher.join()
        if child.poll() is None:
            child.kill()
            written = None
        feeder.join()  # the pipe breaks when its reader ends
    return None if is_killed.is_set() else written


def _feed(pipe: IO[bytes], order: bytes) -> None:
    with suppress(OSError):  # it has ended without reading all
        try:
            pipe.write(order)
        finally:
            pipe.close()


def _drain(pipe: IO[bytes], most: int) -> bytes | None:
    """Returns what comes until the end; None once it is more than `most` bytes."""
    written = bytearray()
    while piece := os.read(pipe.fileno(), _PIECE):
        written += piece
        if len(written) > most:
            return None
    return bytes(written)


def _watch(
    child: subprocess.Popen[bytes], memory: int, end: float, has_ended: Event, is_killed: Event, left: Event | None
) -> None:
    """Kills a child at its limits, or when its caller leaves."""
    # Linux and Windows limit the child's memory by themselves. macOS cannot: each process maps hundreds of gigabytes.
    is_watched = sys.platform == "darwin"
    look = _LOOK if is_watched else _until(end) if left is None else _LOOK_FOR_CALLER
    while not has_ended.wait(min(look, _until(end))):
        is_late = time.monotonic() >= end or (left is not None and left.is_set())
        if is_late or (is_watched and footprint(child.pid) > memory):
            is_killed.set()
            child.kill()
            return


def _until(end: float) -> float:
    """Returns the seconds until a time of the monotonic clock, at least 0."""
    return max(0.0, end - time.monotonic())
