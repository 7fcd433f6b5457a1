"""A process that has imported the server and forks one for each case: importing takes seconds, forking does not.

`start_fork_server` starts it and writes the program that the tests run as llama-server. That program asks it for
a server with its own arguments, folder and environment, passes SIGTERM on, and ends as the server ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.clients.llama_cpp.server import translate

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({place!r})
wish = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ), "pid": os.getpid()}}
line.sendall(json.dumps(wish).encode() + b"\\n")
replies = line.makefile()
pid = int(replies.readline())
signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
sys.exit(int(replies.readline() or 1))
"""


def start_fork_server(program: Path) -> subprocess.Popen[bytes]:
    """Writes the program to be run as llama-server, and returns the process that it asks; kill it at the end."""
    place = str(program) + ".socket"
    program.write_text(_PROGRAM.format(python=sys.executable, place=place))
    program.chmod(0o755)
    process = subprocess.Popen([sys.executable, "-m", __name__, place], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def _serve(place: str) -> None:
    # What a server imports late.
    import woolly.llm
    import woolly.serving.lifecycle.http_server  # noqa: F401
    from woolly.cli import main

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _watch(line, main)


def _watch(line: socket.socket, main) -> None:  # type: ignore[no-untyped-def]
    """Forks the server, and tells its number and then how it ended. Never returns."""
    wish = json.loads(line.makefile().readline())
    pid = os.fork()
    if pid == 0:
        line.close()
        _become(wish)
        main()
        os._exit(0)
    line.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(wish: dict) -> None:  # type: ignore[type-arg]
    """Takes over the folder, environment, output and arguments of the program that asked."""
    os.chdir(wish["folder"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    for number in (1, 2):
        os.dup2(os.open(f"/proc/{wish['pid']}/fd/{number}", os.O_WRONLY | os.O_APPEND), number)
    arguments = translate(wish["arguments"], Path(os.environ["WOOLLY_LLAMA_TESTS"]))
    sys.argv = ["woolly", "serve", *arguments]


if __name__ == "__main__":
    _serve(sys.argv[1])
