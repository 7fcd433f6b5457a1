"""A process that begins anew as itself, but not for ever."""

import os
import socket
import subprocess
import sys
import time

import pytest

from woolly.machine import restart
from woolly.machine.restart import can_restart, end_left_children

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot replace a process")


@pytest.mark.parametrize(
    ("ages", "expected"),
    [((), True), ((10, 20, 30, 40), True), ((10, 20, 30, 40, 50), False), ((10, 20, 30, 40, 7200), True)],
)
def test_repeated_failure_is_not_restarted(ages, expected, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "woolly", "serve"])
    monkeypatch.setenv("WOOLLY_RESTARTS", " ".join(f"{time.time() - age:.0f}" for age in ages))
    assert can_restart() is expected


def test_invalid_times_do_not_count(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "woolly", "serve"])
    monkeypatch.setenv("WOOLLY_RESTARTS", "yes nan -1 99999999999 1e9 x")
    assert can_restart()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children by /proc")
def test_leftover_child_processes_are_ended_and_waited_for(monkeypatch):
    monkeypatch.setattr("woolly.machine.restart._ENDING", 0.2)
    monkeypatch.setattr("woolly.machine.restart._foreign", set())
    monkeypatch.delenv("WOOLLY_LEFT", raising=False)
    assert end_left_children() is None
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    programs = ["import sys; sys.stdin.read()", "print(flush=True); import time; time.sleep(600)", stubborn]
    children = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for program in programs
    ]
    for child in children[1:]:
        child.stdout.readline()  # it is past what it does first
    children[0].stdin.close()
    kept = subprocess.Popen([sys.executable, "-c", programs[1]], stdout=subprocess.PIPE)
    monkeypatch.setenv("WOOLLY_LEFT", " ".join(str(child.pid) for child in children) + f" {os.getppid()} x")
    thread = end_left_children()
    thread.join(60)
    assert not thread.is_alive() and "WOOLLY_LEFT" not in os.environ
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
        child.poll()  # so that its object knows, too
        child.stdin.close()
        child.stdout.close()
    assert kept.poll() is None
    kept.kill()
    kept.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children by /proc")
def test_processes_older_than_the_server_are_not_inherited(monkeypatch):
    monkeypatch.setattr(restart, "_foreign", set())
    monkeypatch.delenv("WOOLLY_LEFT", raising=False)
    given = {}
    monkeypatch.setattr(os, "execve", lambda path, line, environment: given.update(environment))
    monkeypatch.setattr(os, "dup2", lambda *_, **__: None)
    monkeypatch.setattr(os, "set_inheritable", lambda *_: None)
    waits = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with socket.socket() as listener, subprocess.Popen(waits, stdin=subprocess.PIPE) as before:
        assert end_left_children() is None
        with subprocess.Popen(waits, stdin=subprocess.PIPE) as own:
            restart.restart(listener)
            left = given["WOOLLY_LEFT"].split()
            assert str(own.pid) in left and str(before.pid) not in left


def test_pid_1_of_a_container_kills_no_orphan(monkeypatch):
    monkeypatch.setattr(restart, "_ENDING", 0.0)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as orphan:
        restart._end([orphan.pid])
        assert orphan.poll() is None
