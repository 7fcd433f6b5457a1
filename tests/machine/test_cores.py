"""The default number of threads: the physical cores that this process may use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from woolly.machine import cores
from woolly.machine.cores import default_threads


class FakePath:
    """Files of /sys by name; what is not there raises as a missing file does."""

    def __init__(self, files):
        self.files = files

    def __call__(self, path):
        return Found(self.files.get(path))


class Found:
    def __init__(self, text):
        self.text = text

    def read_text(self):
        if self.text is None:
            raise FileNotFoundError
        return self.text


def machine(monkeypatch, *, cpus, siblings=None, quota=None):
    """A machine of so many CPUs; siblings gives the list that each CPU names."""
    files = {} if quota is None else {"/sys/fs/cgroup/cpu.max": quota}
    for cpu, text in (siblings or {}).items():
        files[f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = text
    monkeypatch.setattr(cores, "Path", FakePath(files))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus), raising=False)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_one_cpu_of_affinity_gives_one_thread():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from woolly.machine.cores import default_threads; print(default_threads())"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "1"


def test_default_threads_are_within_the_affinity():
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert 1 <= default_threads() <= allowed


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000\n", 8),
        ("300000 100000\n", 3),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1 100000\n", 1),
        ("9900000 100000\n", 8),
        ("\n", 8),
        (None, 8),
    ],
)
def test_cgroup_quota_limits_the_threads(quota, expected, monkeypatch):
    machine(monkeypatch, cpus=range(8), quota=quota)
    assert default_threads() == expected


def test_hyperthreads_are_counted_once(monkeypatch):
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}\n" for cpu in range(8)}
    machine(monkeypatch, cpus=range(8), siblings=siblings)
    assert default_threads() == 4
    machine(monkeypatch, cpus=[0, 4, 5], siblings=siblings)
    assert default_threads() == 2


def test_without_sys_every_cpu_counts(monkeypatch):
    machine(monkeypatch, cpus=[3, 5, 7])
    assert default_threads() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads() == 1


def test_real_sysfs_files_are_read():
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    if not path.exists():
        pytest.skip("this system has no /sys topology")
    assert cores._siblings(cpu) == path.read_text()
