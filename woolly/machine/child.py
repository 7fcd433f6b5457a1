"""Bounded children: a process of Python's own that does one dangerous thing under limits of memory and time.

No thread can stop native code that loops, or survive its abort, so a child does such work. Its script is run by path,
imports nothing of woolly, and limits itself by `limits.py`, whose path its order names.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from woolly.machine.apple import footprint

if TYPE_CHECKING:
    import subprocess

__all__ = ["LIMITS", "can_start", "run_child", "wait_for"]

LIMITS = Path(__file__).with_name("limits.py")
_LOOK = 0.02  # seconds between two looks at a child's memory: enough for 100 MB more at the speed of memory


def can_start() -> bool:
    """Whether there is an interpreter to start."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def run_child(script: Path, order: bytes, *, memory: int, patience: float) -> bytes | None:
    """Returns what a child wrote; None if it failed, crashed, or passed a limit. OSError if no process can start.

    `patience` are seconds on the clock. The child limits its memory and its processor time by itself, except on macOS.
    """
    import subprocess  # few starts need it

    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            written = wait_for(child, order, memory=memory, patience=patience)
        except BaseException:
            child.kill()
            raise
        if written is None:
            child.kill()
            return None
    return written if child.returncode == 0 else None


def wait_for(child: subprocess.Popen[bytes], order: bytes, *, memory: int, patience: float) -> bytes | None:
    """Hands the order to a child and returns what it wrote; None if it takes too long or too much memory."""
    from subprocess import TimeoutExpired

    # Linux and Windows limit the child's memory by themselves. macOS cannot: each process maps hundreds of gigabytes.
    watched = sys.platform == "darwin"
    end = time.monotonic() + patience
    while True:
        try:
            written, _ = child.communicate(order, timeout=_LOOK if watched else patience)
            return written or b""
        except TimeoutExpired:
            if time.monotonic() >= end or (watched and footprint(child.pid) > memory):
                return None
            order = b""  # the child has the order, or gets the rest of it
