"""The limits of a child process, on each system by the means that the system has."""

import ctypes
import resource
import subprocess
import sys

import pytest

from woolly.machine import child as bounded
from woolly.machine import limits


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


def test_a_job_of_windows_limits_memory_time_and_priority():
    kernel = Kernel()
    limits._limit_by_job(kernel, 1 << 30, 5)
    assert kernel.limits == {
        "flags": 0x2 | 0x20 | 0x100 | 0x400,
        "process_time": 50_000_000,  # in units of 100 ns
        "process_memory": 1 << 30,
        "priority": 0x4000,
    }
    assert kernel.joined == (0x1_0000_0008, ctypes.c_void_p(-1).value)


@pytest.mark.parametrize("refuses", ["create", "set", "assign"])
def test_a_child_without_its_limits_does_not_go_on(refuses):
    with pytest.raises(OSError, match="refuses a limit"):
        limits._limit_by_job(Kernel(refuses), 1 << 30, 5)


@pytest.mark.parametrize(("system", "names"), [("linux", {"CPU", "CORE", "AS"}), ("darwin", {"CPU", "CORE"})])
def test_macos_is_not_asked_to_limit_addresses(system, names, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(kind))
    monkeypatch.setattr(limits.os, "nice", lambda by: by)
    limits.limit_process(1 << 30, 5)
    assert set(asked) == {getattr(resource, f"RLIMIT_{name}") for name in names}


class Child:
    """A child process that takes a number of looks to end."""

    pid = 12

    def __init__(self, looks):
        self.looks, self.orders = looks, []

    def communicate(self, order, timeout):
        self.orders.append(order)
        if len(self.orders) <= self.looks:
            raise subprocess.TimeoutExpired("child", timeout)
        return b"done", None


def wait(child, order=b"{}", patience=60.0):
    return bounded.wait_for(child, order, memory=1 << 30, patience=patience)


def test_macos_ends_a_child_that_holds_too_much(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    sizes = iter([100 << 20, 1 << 30, (1 << 30) + 1])
    monkeypatch.setattr(bounded, "footprint", lambda pid: next(sizes))
    child = Child(looks=100)
    assert wait(child) is None
    assert child.orders == [b"{}", b"", b""]  # communicate takes its input once


def test_macos_lets_a_small_child_end(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(bounded, "footprint", lambda pid: 1)
    assert wait(Child(looks=5)) == b"done"


def test_a_real_child_is_looked_at_again_and_again(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    looked = []
    monkeypatch.setattr(bounded, "footprint", lambda pid: looked.append(pid) or 0)
    program = "import sys, time; text = sys.stdin.read(); print(text); time.sleep(0.3); sys.exit(len(text))"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert wait(child, b"four").strip() == b"four"
    assert child.returncode == 4
    assert set(looked) == {child.pid}


def test_a_system_that_limits_the_child_does_not_look(monkeypatch):
    monkeypatch.setattr(bounded, "footprint", lambda pid: pytest.fail("looked"))
    assert wait(Child(looks=1), patience=-1.0) is None


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("print('a')", b"a"),
        ("raise SystemExit(3)", None),
        ("import os; os.abort()", None),
        ("import time; time.sleep(60)", None),
    ],
)
def test_a_child_that_fails_crashes_or_hangs_gives_nothing(program, written, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program)
    found = bounded.run_child(script, b"", memory=1 << 30, patience=3.0)
    assert (found if found is None else found.strip()) == written
