"""A small network of namespaces on one machine, whose links can be cut. It is gone when its processes are.

The calling process moves into a namespace of its own, with a bridge; each machine is a process in another one, joined
to the bridge by a pair of interfaces. To cut is to take down the bridge's port: no connection ends, packets are lost.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_START = 'read -r _ && ip link set lo up && ip address add "$0/24" dev eth0 && ip link set eth0 up && exec "$@"'


def enter() -> None:
    """Moves this thread, and all that it starts, into an empty network with a bridge; its own address is 10.99.0.1."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit("replicas: cut needs Linux, root and the program `ip` of iproute2")
    try:
        _leave()
    except OSError as error:
        raise SystemExit(f"replicas: cut cannot make a network namespace ({error.strerror})") from None
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "hub", "type", "bridge")
    _ip("address", "add", "10.99.0.1/24", "dev", "hub")
    _ip("link", "set", "hub", "up")


def address(number: int) -> str:
    """Return the address of a machine."""
    return f"10.99.0.{number + 2}"


@contextmanager
def machine(number: int, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A command in a network of its own that reaches the bridge; gives its process."""
    process = subprocess.Popen(
        ["sh", "-c", _START, address(number), *command],
        preexec_fn=_leave,
        start_new_session=True,  # Ctrl-C reaches the caller alone, which ends it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        _ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
        _ip("link", "set", f"port{number}", "master", "hub", "up")
        process.stdin.write("\n")
        process.stdin.close()
        yield process
    finally:
        process.kill()  # it may wait for a front that it cannot hear
        process.wait()


def cut(number: int) -> None:
    """Cuts the link of a machine."""
    _ip("link", "set", f"port{number}", "down")


def mend(number: int) -> None:
    """Joins it again."""
    _ip("link", "set", f"port{number}", "up")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"replicas: `ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _leave() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
