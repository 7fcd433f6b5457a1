"""The limits of a child process, on each system by the means that the system has."""

import contextvars
import ctypes
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from woolly.machine import limited_process as bounded
from woolly.machine import process_limits


class Kernel:
    """The functions of Windows that make a job; `refuses` names one that fails."""

    def __init__(self, refuses=""):
        self.refuses, self.limits, self.joined = refuses, {}, None

        def create(attributes, name):
            return 0 if refuses == "create" else 0x1_0000_0008

        self.CreateJobObjectW = create

    def SetInformationJobObject(self, job, kind, limits, size):  # noqa: N802
        assert (job.value, kind, size) == (0x1_0000_0008, 9, 144)  # as <winnt.h> has them
        found = limits._obj
        self.limits = {name: getattr(found, name) for name in ("flags", "process_time", "process_memory", "priority")}
        return self.refuses != "set"

    def AssignProcessToJobObject(self, job, process):  # noqa: N802
        self.joined = job.value, process.value
        return self.refuses != "assign"


def test_windows_job_limits_memory_time_and_priority():
    kernel = Kernel()
    process_limits._limit_by_job(kernel, 1 << 30, 5)
    assert kernel.limits == {
        "flags": 0x2 | 0x20 | 0x100 | 0x400,
        "process_time": 50_000_000,  # in units of 100 ns
        "process_memory": 1 << 30,
        "priority": 0x4000,
    }
    assert kernel.joined == (0x1_0000_0008, ctypes.c_void_p(-1).value)


@pytest.mark.parametrize("refuses", ["create", "set", "assign"])
def test_child_without_its_limits_stops(refuses):
    with pytest.raises(OSError, match="rejected the limits"):
        process_limits._limit_by_job(Kernel(refuses), 1 << 30, 5)


@pytest.mark.parametrize(("system", "names"), [("linux", {"CPU", "CORE", "AS"}), ("darwin", {"CPU", "CORE"})])
def test_macos_does_not_limit_the_address_space(system, names, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(kind))
    monkeypatch.setattr(process_limits.os, "nice", lambda by: by)
    process_limits.limit_process(1 << 30, 5)
    assert set(asked) == {getattr(resource, f"RLIMIT_{name}") for name in names}


def wait(program, order=b"", patience=60.0, max_output_bytes=1 << 20):
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        written = bounded.wait_for(child, order, memory=1 << 30, patience=patience, max_output_bytes=max_output_bytes)
    return written, child.returncode


HANGS = "import time; time.sleep(60)"
SLOW = "import sys, time; text = sys.stdin.read(); print(text); time.sleep(0.3); sys.exit(len(text))"


def test_macos_kills_a_child_that_uses_too_much_memory(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    sizes = iter([100 << 20, 1 << 30, (1 << 30) + 1])
    monkeypatch.setattr(bounded, "footprint", lambda pid: next(sizes))
    assert wait(HANGS)[1] == -signal.SIGKILL
    assert next(sizes, None) is None


def test_macos_watches_a_small_child_until_it_ends(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    looked = []
    monkeypatch.setattr(bounded, "footprint", lambda pid: looked.append(pid) or 0)
    written, code = wait(SLOW, b"four")
    assert (written.strip(), code) == (b"four", 4)
    assert len(looked) > 1 and len(set(looked)) == 1


def test_no_watching_where_the_system_limits_the_child(monkeypatch):
    monkeypatch.setattr(bounded, "footprint", lambda pid: pytest.fail("looked"))
    assert wait(SLOW, b"four")[1] == 4


def test_child_that_closes_its_output_is_killed_at_the_deadline():
    assert wait("import os, time; os.close(1); time.sleep(60)", patience=0.5) == (None, -signal.SIGKILL)


def test_partial_output_of_a_killed_child_is_not_its_answer():
    assert wait("import time; print('half', flush=True); time.sleep(60)", patience=0.5) == (None, -signal.SIGKILL)


def test_child_that_writes_endlessly_is_killed():
    tracemalloc.start()
    try:
        assert wait("while True: print('a' * 65536)", max_output_bytes=1 << 20) == (None, -signal.SIGKILL)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert wait("print('a' * (1 << 19))", max_output_bytes=1 << 20) == (b"a" * (1 << 19) + b"\n", 0)


def test_child_that_does_not_read_its_input_is_waited_for():
    assert wait("print('a')", b"a" * (4 << 20)) == (b"a\n", 0)


def test_child_is_killed_when_its_caller_leaves():
    left = threading.Event()
    context = contextvars.copy_context()
    context.run(bounded.abandoned.set, left)
    threading.Timer(0.3, left.set).start()
    assert context.run(wait, HANGS)[1] == -signal.SIGKILL


def test_child_sees_neither_keys_nor_the_folder_of_its_parent(tmp_path, monkeypatch):
    monkeypatch.setenv("WOOLLY_API_KEY", "secret")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import os; print(sorted(os.environ), os.getcwd())")
    found = bounded.run_limited(Path("script.py"), b"", memory=1 << 30, patience=60.0, max_output_bytes=1000)
    assert b"KEY" not in found and found.split()[-1] == b"/"


@pytest.mark.parametrize(
    ("program", "written", "patience"),
    [
        ("print('a')", b"a", 60.0),
        ("raise SystemExit(3)", None, 60.0),
        ("import os; os.abort()", None, 60.0),
        (HANGS, None, 1.0),
    ],
)
def test_child_that_fails_crashes_or_hangs_gives_nothing(program, written, patience, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program)
    found = bounded.run_limited(script, b"", memory=1 << 30, patience=patience, max_output_bytes=1000)
    assert (found if found is None else found.strip()) == written
