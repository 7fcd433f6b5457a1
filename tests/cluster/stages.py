"""Stages for tests: on threads of the test, or as processes that can be killed."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from tests.cases.fork_server import Ready
from woolly.cluster.stage import Stage

TOKEN = b"a token of the tests, long enough"


def wait_for(condition):
    """Waits until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def on_threads(path, n, **options):
    """Run stages of a model on threads of this process."""
    stages = [Stage(path, TOKEN, threads=1, **options) for _ in range(n)]
    threads = [threading.Thread(target=stage.serve) for stage in stages]
    for thread in threads:
        thread.start()
    try:
        yield stages
    finally:
        for stage in stages:
            stage.close()
        for thread in threads:
            thread.join()


def names(stages):
    """Addresses as `LLM(stages=)` takes them."""
    return [f"{host}:{port}" for host, port in (stage.address for stage in stages)]


def token_file(folder):
    """A file with the token, which only its owner can read."""
    path = folder / "token"
    path.touch(0o600)
    path.write_bytes(TOKEN)
    return path


class Process:
    """`woolly stage` as a process of its own."""

    def __init__(self, path, token, listen="127.0.0.1:0", **environment):
        command = [sys.executable, "-m", "woolly", "stage", str(path), "--listen", listen, "--token-file", str(token)]
        self.process = Ready(
            [*command, "-t", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        line = self.process.stdout.readline()
        assert "listens at" in line
        self.name = line.split()[-1]

    def kill(self):
        """Ends it without a word."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
