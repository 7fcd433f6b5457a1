"""Restart: this process begins anew as itself, with the port that it listens at."""

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

# systemd's way to hand an open socket to a process: its number, and in the environment for whom it is.
_SOCKET = 3
_NAMES = ("LISTEN_PID", "LISTEN_FDS")

# Children of the process that is replaced, which are those of the one that comes after it.
_LEFT = "WOOLLY_LEFT"
_ENDING = 5.0  # seconds that each of them has to end by itself
# Children that were there before this process had started any: a script may begin some and then become the server.
_foreign: set[int] = set()

# When the process began anew, in seconds since 1970, for those that come after it.
_TIMES = "WOOLLY_RESTARTS"
# Most restarts within a time: what failed that often fails again.
_MAX_RESTARTS, _SECONDS = 5, 1800.0


def can_restart() -> bool:
    """Return True if the system can replace a process, and this one was not replaced too often."""
    return (
        sys.platform != "win32" and len(sys.orig_argv) > 1 and bool(sys.executable) and len(_recent()) < _MAX_RESTARTS
    )


def restart(listener: socket.socket) -> NoReturn:
    """Replaces this process by one of the same command, which listens at the same socket: no client is refused.

    Whatever else is open, and all threads, end here. A GPU that failed is free again then, as nothing else can make it.
    OSError if the command is not there any more.
    """
    listing = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for number in [int(entry.name) for entry in listing.iterdir()]:
        if number >= _SOCKET:
            with suppress(OSError):  # that of the listing itself is closed by now
                os.set_inheritable(number, False)
    os.dup2(listener.fileno(), _SOCKET, inheritable=True)
    os.set_inheritable(_SOCKET, True)  # dup2 leaves a number that it was given as it is
    times = " ".join(f"{one:.0f}" for one in (*_recent(), time.time()))
    environment = {**os.environ, "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", _TIMES: times}
    environment[_LEFT] = " ".join(str(pid) for pid in _children() if pid not in _foreign)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def end_left_children() -> threading.Thread | None:
    """Ends what the process before a restart had started, such as MCP servers: nobody else would wait for them.

    Returns the thread that does it; None if there are none. Called before this process starts any of its own.
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
    """Waits for children, which see the end of their input; one that goes on is terminated, then killed."""
    if sys.platform == "win32":  # which cannot restart
        return
    # The first process of a container gets the orphans of all others, and cannot tell them from what it started.
    numbers = (0,) if os.getpid() == 1 else (0, signal.SIGTERM, signal.SIGKILL)
    for pid in pids:
        with suppress(OSError):  # it is none of this process
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
    """Processes that this one has started and not waited for; none if the system does not report them."""
    if sys.platform == "darwin":
        return child_ids(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            # The name is in brackets and may hold anything; behind it are the state and the parent.
            if int(entry.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def inherited_socket() -> socket.socket | None:
    """Returns the socket that `restart`, or systemd, gave this process to listen at; None if there is none."""
    pid, count = (os.environ.pop(name, "") for name in _NAMES)
    if pid != str(os.getpid()) or count != "1":
        return None
    os.set_inheritable(_SOCKET, False)
    return socket.socket(fileno=_SOCKET)


def _recent() -> list[float]:
    """Returns when the last restarts were."""
    now = time.time()
    times = [float(text) for text in os.environ.get(_TIMES, "").split() if text.isascii() and text.isdigit()]
    return [one for one in times if now - _SECONDS < one <= now]
