"""Engines in processes of their own that answer one measurement per line, so that two can be measured in turn.

A request is one JSON object per line, {"do": NAME, ...}; the answer is one JSON object, or {"error": SENTENCE}. This
file needs nothing but Python, because the peer's environment has no Woolly in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

GET_THE_PEER = (
    "name the Python of an environment that has llama.cpp with --peer-python, such as peer/bin/python after:"
    " python3 -m venv peer && CMAKE_ARGS=-DGGML_NATIVE=ON peer/bin/pip install llama-cpp-python"
)


class ServerError(Exception):
    """An engine could not be started, or could not do what it was asked."""


class Server:
    """One engine's process."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        try:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # `benchmarks` is found there, whatever the folder
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        except OSError as error:
            raise ServerError(f"{name} could not be started with {command[0]}: {error.strerror}") from None

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ServerError(f"{self.name} ended with exit code {self._process.wait()} when asked to {do}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ServerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def start_ours() -> Server:
    """Woolly, of the environment that runs this."""
    return Server("Woolly", [sys.executable, "-m", "benchmarks.versus.ours"])


def start_peer(python: str) -> Server:
    """llama.cpp, of the environment of another Python."""
    try:
        server = Server("llama.cpp", [python, "-m", "benchmarks.versus.peer"])
        try:
            server.ask("about")
        except ServerError:
            server.close()
            raise
    except ServerError as error:
        raise ServerError(f"{error}; {GET_THE_PEER}") from None
    return server


def serve(requests: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Answers requests until standard input ends. What else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = requests[request.pop("do")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def peak_mib() -> float:
    """The most memory that this process held at once, mapped files included, in MiB."""
    # Not by getrusage, which also counts the parent from which the process was forked.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not tell the peak memory of a process")
