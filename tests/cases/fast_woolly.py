"""A `woolly` for shells that starts as a copy of a process which has imported everything (fork_server.py).

`opened` gives the folder to put on a shell's PATH. The command in it is a small program, the second half of this file:
it hands its arguments, environment, folder and standard streams over, passes signals on and ends as the copy ends.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

_CODE = "import sys; sys.argv[0] = 'woolly'; from woolly.cli import main; sys.exit(main())"  # as an installed one


@contextlib.contextmanager
def opened(folder):
    """A folder with the command, or None where no copies can be made."""
    import shlex
    import threading

    from tests.cases import fork_server

    if not fork_server.has_fork_server():
        yield None
        return
    fork_server.fork_server()
    command = folder / "woolly"
    place = str(folder / "listener")
    words = shlex.join([sys.executable, "-IS", __file__, place])
    command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(16)

        def admit():
            with contextlib.suppress(OSError):  # until the listener is closed
                while True:
                    threading.Thread(target=_serve, args=(listener.accept()[0], fork_server), daemon=True).start()

        threading.Thread(target=admit, daemon=True).start()
        yield folder
        listener.shutdown(socket.SHUT_RDWR)


def _serve(asked, fork_server):
    """Starts what one command asks for, tells it the process, and at last how that has ended."""
    with asked:
        text, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        try:
            order = json.loads(text)
            if not fork_server.is_alike(order["environment"]):
                asked.send(b"0")
                return
            pid, end = fork_server.fork_server().start(order, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        with end:
            asked.send(str(pid).encode())
            if end not in select.select([asked, end], [], [])[0]:
                os.kill(pid, signal.SIGKILL)  # the command that asked for it was killed
            reported = end.recv(32)
            with contextlib.suppress(OSError):
                asked.send(reported)


# -------------------------------------------------------------------------------------------- the command itself


def ask(place, arguments):
    """Runs `woolly` with these arguments on the other side of the listener, and ends as it does."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(place)
    order = {"program": ["-c", _CODE, arguments], "environment": dict(os.environ), "folder": str(Path.cwd())}
    passed = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)  # until there is a process to pass them to
    socket.send_fds(asked, [json.dumps(order).encode()], [0, 1, 2])
    pid = int(asked.recv(32))
    if not pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
        os.execv(sys.executable, [sys.executable, "-c", _CODE, *arguments])
    for number in passed:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    code = os.waitstatus_to_exitcode(int(asked.recv(32)))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    ask(sys.argv[1], sys.argv[2:])
