"""Restart of this process with the same command and the same listening socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from woolly.machine.apple import child_ids

# systemd's protocol for passing a socket: its file descriptor, and environment variables with the receiving process.
_SOCKET = 3
_NAMES = ("LISTEN_PID", "LISTEN_FDS")

# Child processes of the replaced process, which the new process inherits.
_LEFT = "WOOLLY_LEFT"
_ENDING = 5.0  # seconds until a child is terminated
# Children that existed before this process started any: a script may start children and then become the server.
_foreign: set[int] = set()

# Times of earlier restarts, in seconds since 1970, for later processes.
_TIMES = "WOOLLY_RESTARTS"
# Maximum number of restarts within a period; repeated failures are likely to continue.
_MAX_RESTARTS, _SECONDS = 5, 1800.0


def can_restart() -> bool:
    """Return True if the system can replace a process, and this process has not been restarted too often."""
    return (
        sys.platform != "win32" and len(sys.orig_argv) > 1 and bool(sys.executable) and len(_recent()) < _MAX_RESTARTS
    )


def restart(listener: socket.socket) -> NoReturn:
    """Replace this process with one that has the same command and listening socket, so that no client is rejected.

    All other files and threads are closed, which also frees a failed GPU. Raise OSError if the command no longer
    exists.
    """
    listing = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for number in [int(entry.name) for entry in listing.iterdir()]:
        if number >= _SOCKET:
            with suppress(OSError):  # the descriptor of the listing is already closed
                os.set_inheritable(number, False)
    os.dup2(listener.fileno(), _SOCKET, inheritable=True)
    os.set_inheritable(_SOCKET, True)  # dup2 does not change a descriptor that is already number 3
    times = " ".join(f"{one:.0f}" for one in (*_recent(), time.time()))
    environment = {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", _TIMES: times}
    environment[_LEFT] = " ".join(str(pid) for pid in _children() if pid not in _foreign)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def end_left_children() -> threading.Thread | None:
    """End the children of the process before a restart, such as MCP servers, which no other process would reap.

    Return the thread that does this, or None if there are none. Call it before this process starts children.
    """
    left = [int(text) for text in os.environ.pop(_LEFT, "").split() if text.isascii() and text.isdigit()]
    mine = set(_children())
    _foreign.update(mine.difference(left))
    if not left:
        return None
    thread = threading.Thread(target=_end, args=([pid for pid in left if pid in mine],), daemon=True)
    thread.start()
    return thread


def _end(pids: list[int]) -> None:
    """Wait for children, which see the end of their input. Terminate, then kill those that continue."""
    if sys.platform == "win32":  # Windows cannot restart
        return
    # The first process of a container inherits all orphans and cannot tell them from its own children.
    numbers = (0,) if os.getpid() == 1 else (0, signal.SIGTERM, signal.SIGKILL)
    for pid in pids:
        with suppress(OSError):  # not a child of this process
            for number in numbers:
                if number:
                    os.kill(pid, number)
                if _has_ended(pid):
                    break


def _has_ended(pid: int) -> bool:
    if sys.platform == "win32":
        return True
    end = time.monotonic() + _ENDING
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _children() -> list[int]:
    """Return the unreaped children of this process; empty if the system does not report them."""
    if sys.platform == "darwin":
        return child_ids(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # the process ended meanwhile
            # The name is in parentheses and may contain anything; state and parent follow it.
            if int(entry.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def inherited_socket() -> socket.socket | None:
    """Return the listening socket passed by `restart` or systemd, or None."""
    pid, count = (os.environ.pop(name, "") for name in _NAMES)
    if pid != str(os.getpid()) or count != "1":
        return None
    os.set_inheritable(_SOCKET, False)
    return socket.socket(fileno=_SOCKET)


def _recent() -> list[float]:
    """Return the times of recent restarts."""
    now = time.time()
    times = [float(text) for text in os.environ.get(_TIMES, "").split() if text.isascii() and text.isdigit()]
    return [one for one in times if now - _SECONDS < one <= now]
