"""Replicas for tests: in threads of this process, some of which die, fall silent or differ."""

import os
import signal
import socket
import subprocess
import sys
import threading

from woolly.cluster.launchers import ProcessLauncher, ReplicaHandle, ReplicaLauncher, _ProcessHandle
from woolly.cluster.replica import Replica
from woolly.wire import Connection, Link


def link_of(sock, is_client=True):
    """The link over one end of a pair of sockets."""
    return Link(Connection(sock, None, is_client=is_client))


class ThreadHandle(ReplicaHandle):
    def __init__(self, link):
        self.link = link

    def kill(self):
        self.link.close()


class ThreadLauncher(ReplicaLauncher):
    """A replica in a thread: `after` messages of answers it dies or falls silent, the first `times` times.

    One that `hangs` never opens its model.
    """

    def __init__(self, name, *, dies_after=None, silent_after=None, times=1, options=None, hangs=False):
        super().__init__(name, threads=1)
        self.limit = dies_after or silent_after
        self.is_silent = silent_after is not None
        self.times = times
        self.options = options or {}
        self.hangs = hangs
        self.n_starts = 0

    def start(self):
        ours, theirs = socket.socketpair()
        self.n_starts += 1
        is_weak = self.limit is not None and self.n_starts <= self.times
        link = WeakLink(Connection(theirs, None, is_client=False), self.limit if is_weak else None, self.is_silent)
        replica = HangingReplica(link) if self.hangs else OddReplica(link, self.options)
        threading.Thread(target=replica.serve, daemon=True).start()
        return ThreadHandle(link_of(ours))


class OddReplica(Replica):
    """Opens the model with options of its own."""

    def __init__(self, link, options):
        super().__init__(link)
        self._odd = options

    def _do_open(self, message):
        super()._do_open({**message, "options": {**message["options"], **self._odd}})


class HangingReplica(Replica):
    """Never opens its model."""

    def _do_open(self, message):
        pass


class WeakLink(Link):
    """Ends, or says nothing more, after some tokens."""

    def __init__(self, connection, limit, is_silent):
        super().__init__(connection)
        self.limit = limit
        self.is_silent = is_silent
        self.n_tokens = 0

    def send(self, message):
        if self.limit is not None:
            self.n_tokens += len(message.fields.get("tokens", ()))
            if self.n_tokens >= self.limit:
                if not self.is_silent:
                    self.close()
                return
        super().send(message)


_DYING = """
import os, signal, sys
from woolly.cluster import replica
send = replica.Link.send
n = 0
def die(link, message):
    global n
    n += len(message.fields.get("tokens", ()))
    if n >= {limit}:
        os.kill(os.getpid(), signal.SIGKILL)
    send(link, message)
replica.Link.send = die
replica.main()
"""


class DyingLauncher(ProcessLauncher):
    """A process that kills itself with SIGKILL before it sends its n-th token; the successor lives."""

    def __init__(self, name, limit):
        super().__init__(name, threads=1)
        self.limit = limit

    def start(self):
        if self.limit is None:
            return super().start()
        code, self.limit = _DYING.format(limit=self.limit), None
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        return _ProcessHandle(link_of(ours), process)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
