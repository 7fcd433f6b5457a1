"""The limits of a trial, on each system by the means that the system has."""

import ctypes
import resource
import subprocess
import sys

import pytest

from woolly.errors import RequestError
from woolly.grammar import trial, trial_child


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
    trial_child._limit_by_job(kernel, 1 << 30, 5)
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
        trial_child._limit_by_job(Kernel(refuses), 1 << 30, 5)


@pytest.mark.parametrize(("system", "names"), [("linux", {"CPU", "CORE", "AS"}), ("darwin", {"CPU", "CORE"})])
def test_macos_is_not_asked_to_limit_addresses(system, names, monkeypatch):
    asked = []
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(kind))
    monkeypatch.setattr(trial_child.os, "nice", lambda by: by)
    trial_child._limit(1 << 30, 5)
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


def test_macos_ends_a_child_that_holds_too_much(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    sizes = iter([100 << 20, trial.MEMORY, trial.MEMORY + 1])
    monkeypatch.setattr(trial, "footprint", lambda pid: next(sizes))
    child = Child(looks=100)
    with pytest.raises(RequestError, match="too costly"):
        trial._wait(child, b"{}")
    assert child.orders == [b"{}", b"", b""]  # communicate takes its input once


def test_macos_lets_a_small_child_end(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(trial, "footprint", lambda pid: 1)
    trial._wait(Child(looks=5), b"{}")


def test_a_real_child_is_looked_at_again_and_again(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    looked = []
    monkeypatch.setattr(trial, "footprint", lambda pid: looked.append(pid) or 0)
    program = "import sys, time; text = sys.stdin.read(); time.sleep(0.3); sys.exit(len(text))"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        trial._wait(child, b"four")
    assert child.returncode == 4
    assert set(looked) == {child.pid}


def test_a_system_that_limits_the_child_does_not_look(monkeypatch):
    monkeypatch.setattr(trial, "footprint", lambda pid: pytest.fail("looked"))
    monkeypatch.setattr(trial, "PATIENCE", -1.0)
    with pytest.raises(RequestError, match="too costly"):
        trial._wait(Child(looks=1), b"{}")
