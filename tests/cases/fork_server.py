"""Processes of Woolly that begin with all that they would import: copies of one that has done nothing else.

A command takes one to three seconds of a processor to import what it needs, hundreds of times in a run of all tests.
What begins here is a process like any other: its own memory, descriptors, environment, folder, signals and exit code.
What a process only settles as Python starts, such as the encoding of its standard streams, needs one that does:
`Ready` then starts Python as usual.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What nothing reads before the first line of a program: another value of it needs no new Python.
_LATE = (
    *("COLUMNS", "HOME", "LINES", "NO_COLOR", "PATH", "PROMPT_TOOLKIT_NO_CPR", "TERM", "TTY"),
    *("OLDPWD", "PWD", "SHLVL", "_"),  # of shells
)
_LATE_PREFIXES = ("HF_", "PYTEST_", "WOOLLY_")
# What commands import when they are asked to serve, to answer and to look for a GPU, beside the files of the commands.
_MODULES = (
    *("woolly.serving.lifecycle.http_server", "woolly.cluster.front", "woolly.cluster.replica"),
    *("woolly.templates.sandbox", "woolly.models.granite", "woolly.models.llama", "woolly.runtime.cpu.program"),
    *(f"woolly.cli.terminal.{name}" for name in ("answer", "log", "transcript")),
    *(f"woolly.runtime.{kind}.gpu_discovery" for kind in ("cuda", "metal", "vulkan")),
    "woolly.runtime.vulkan.physical_device",
    *(f"woolly.sampling.samplers.{name}" for name in ("dry", "penalties", "top_n_sigma", "typ_p", "xtc")),
)

# Options of `Popen` that a copy can honour.
_OPTIONS = {"stdin", "stdout", "stderr", "text", "env", "cwd"}


def _late(environment: dict[str, str]) -> dict[str, str]:
    """An environment without what may differ."""
    late = {name for name in environment if name in _LATE or name.startswith(_LATE_PREFIXES)}
    return {name: value for name, value in environment.items() if name not in late}


class _ForkServer:
    """The process that has imported everything, and the socket on which it is asked for copies of itself."""

    def __init__(self) -> None:
        self.environment = _late(dict(os.environ))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # an order comes as a whole
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()", str(theirs.fileno())]
        # In the project's folder, as the tests are; each copy goes to a folder of its own.
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._ours = ours
        atexit.register(self._close)

    def _close(self) -> None:
        self._ours.close()
        self._process.wait()

    def start(self, order: dict[str, object], descriptors: list[int]) -> tuple[int, socket.socket]:
        """The id of a new process, and the socket on which its end will be told."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._ours, [json.dumps(order).encode()], [*descriptors, theirs.fileno()])
        return int(ours.recv(32)), ours


@functools.cache
def has_fork_server() -> bool:
    """True if the system has pidfd_open, used to wait for child processes: Linux 5.3 or later."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


@functools.cache
def fork_server() -> _ForkServer:
    return _ForkServer()


def is_alike(environment: dict[str, str]) -> bool:
    """True if a forked copy can run with this environment."""
    return _late(environment) == fork_server().environment


def _program(command: object) -> tuple[str, str, list[str]] | None:
    """-c or -m, the code or the module, and its arguments; None if Python is started in another way."""
    words = [os.fspath(word) for word in command] if isinstance(command, (list, tuple)) else []
    if len(words) < 3 or words[0] != sys.executable or words[1] not in ("-c", "-m"):
        return None
    return words[1], words[2], words[3:]


class Ready(subprocess.Popen):
    """`subprocess.Popen` of `[sys.executable, "-c" or "-m", ...]`, without the time of imports where that may be."""

    def __init__(self, command, **options):
        self._end, self._program = None, _program(command)
        if not has_fork_server() or not options.keys() <= _OPTIONS:
            self._program = None
        super().__init__(command, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        environment = dict(os.environ if env is None else env)
        if self._program is None or not is_alike(environment):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        pipes = rest[3:9]  # after startupinfo, creationflags and shell: the two ends of each
        given = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        order = {"program": self._program, "environment": environment, "folder": os.fspath(cwd or Path.cwd())}
        self.pid, self._end = fork_server().start(order, given)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags):
        if self._end is None:
            return super()._try_wait(wait_flags)
        self._end.setblocking(not wait_flags & os.WNOHANG)
        try:
            reported = self._end.recv(32)
        except BlockingIOError:
            return 0, 0
        self._end.close()
        return self.pid, int(reported)

    def _internal_poll(self, *given, **named):
        if self._end is None:
            return super()._internal_poll(*given, **named)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(command, *, input=None, timeout=None, capture_output=False, **options):
    """`subprocess.run` with a `Ready`."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Ready(command, **options) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


# ------------------------------------------------------------------------------------------ in the other process


def serve() -> None:
    """Makes copies of this process until the tests have ended; a copy returns from here into its program."""
    asked = socket.socket(fileno=int(sys.argv[1]))
    asked.set_inheritable(False)
    commands = importlib.import_module("woolly.cli.app").COMMANDS
    for name in (*(f"woolly.cli.commands.{name}" for name in commands), *_MODULES):
        importlib.import_module(name)
    own = [module for name, module in sys.modules.items() if name.startswith("woolly.")]
    for package in (module for module in own if hasattr(module, "__path__")):
        for name in package.__all__:
            getattr(package, name)  # imported when it is first asked for
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = _wait(asked)
    if order is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(order)


def _wait(asked: socket.socket) -> dict[str, object] | None:
    """Wait for the next order; returns it in the forked copy, and None when the client is gone."""
    reported: dict[int, tuple[int, socket.socket]] = {}  # by descriptors of processes
    with selectors.DefaultSelector() as waiting:
        waiting.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd != asked.fileno():
                    pid, end = reported.pop(key.fd)
                    waiting.unregister(key.fd)
                    os.close(key.fd)
                    with contextlib.suppress(BrokenPipeError), end:  # who has started it may have ended
                        end.send(str(os.waitpid(pid, 0)[1]).encode())
                    continue
                text, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 4)
                if not text:
                    return None
                pid = os.fork()
                if pid == 0:
                    for descriptor in [*reported, *(end.fileno() for _, end in reported.values()), descriptors.pop()]:
                        os.close(descriptor)
                    for _, end in reported.values():
                        end.detach()
                    for number, descriptor in enumerate(descriptors):
                        os.dup2(descriptor, number)
                    for descriptor in descriptors:
                        if descriptor > 2:
                            os.close(descriptor)
                    asked.close()
                    return json.loads(text)
                for descriptor in descriptors[:3]:
                    os.close(descriptor)
                end = socket.socket(fileno=descriptors[3])
                end.send(str(pid).encode())
                watched = os.pidfd_open(pid)
                reported[watched] = pid, end
                waiting.register(watched, selectors.EVENT_READ)


def _become(order: dict[str, object]) -> None:
    """Runs a program as Python would that had just started."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    kind, what, arguments = order["program"]
    sys.orig_argv[:] = [sys.executable, kind, what, *arguments]  # what a server that restarts starts
    # As at the start: a stream of a terminal sends each line at once, and errors are sent at once.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, is_line = getattr(sys, name), number == 2 or (number == 1 and os.isatty(1))
        opened = io.TextIOWrapper(
            os.fdopen(number, old.buffer.mode, closefd=False), old.encoding, old.errors, line_buffering=is_line
        )
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    if kind == "-c":
        sys.argv[:] = ["-c", *arguments]
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv[:] = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
