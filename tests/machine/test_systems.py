"""Cores, memory and processes as macOS and Windows report them, with fake system functions."""

import ctypes
import os
import struct
import sys
from types import SimpleNamespace

import pytest

from woolly.machine import apple, cores, memory, restart, windows


class Mac:
    """The functions of macOS, with the answers of one machine."""

    def __init__(self, *, sysctl=None, pages=None, children=(), footprints=None):
        self.sysctl, self.children, self.footprints = sysctl or {}, list(children), footprints or {}

        def host_statistics64(host, flavor, found, count):
            if pages is None:
                return 5  # KERN_FAILURE
            assert (host.value, flavor, count._obj.value) == (77, 4, 38)  # as <mach/host_info.h> has them
            for name, value in pages.items():
                setattr(found._obj, name, value)
            return 0

        self.host_statistics64 = host_statistics64
        self.mach_host_self = SimpleCall(77)

    def sysctlbyname(self, name, value, size, new, new_size):
        assert (size._obj.value, new, new_size.value) == (4, None, 0)
        if name.decode() not in self.sysctl:
            return -1
        value._obj.value = self.sysctl[name.decode()]
        return 0

    def proc_listchildpids(self, pid, found, size):
        assert pid == os.getpid()
        taken = self.children[: size // 4]
        for i, child in enumerate(taken):
            found[i] = child
        return len(taken)

    def proc_pid_rusage(self, pid, flavor, usage):
        if pid not in self.footprints:
            return -1
        usage._obj.footprint = self.footprints[pid]
        return 0


class SimpleCall:
    """A function whose type of result can be set, as one of ctypes."""

    restype = ctypes.c_int

    def __init__(self, result):
        self.result = result

    def __call__(self, *arguments):
        return self.result


@pytest.fixture
def mac(monkeypatch):
    def make(**answers):
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(apple, "_system", lambda: Mac(**answers))

    return make


@pytest.mark.parametrize(
    ("sysctl", "expected"),
    [
        ({"hw.perflevel0.physicalcpu": 8, "hw.physicalcpu": 10}, 8),  # Apple silicon: two cores of ten are slow
        ({"hw.physicalcpu": 6, "hw.logicalcpu": 12}, 6),  # Intel: no levels, and hyper-threads
        ({}, 12),
    ],
)
def test_mac_uses_its_performance_cores(sysctl, expected, mac, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    mac(sysctl=sysctl)
    assert cores.default_threads() == expected


def test_mac_memory_is_free_file_backed_and_purgeable(mac):
    mac(pages={"free": 1000, "inactive": 70_000, "active": 90_000, "external": 300, "purgeable": 20, "internal": 9})
    assert memory.available_memory() == 1320 * os.sysconf("SC_PAGE_SIZE")


def test_mac_that_reports_no_pages_counts_half_of_its_memory(mac, monkeypatch):
    mac()
    monkeypatch.setattr(memory, "Path", lambda name: SimpleNamespace(read_text=lambda: ""))
    assert memory._machine_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@pytest.mark.parametrize("count", [0, 3, 63, 64, 200])
def test_mac_lists_all_children_of_a_process(count, mac):
    mac(children=range(1000, 1000 + count))
    assert restart._children() == list(range(1000, 1000 + count))


def test_mac_reports_the_memory_of_a_live_process(mac):
    mac(footprints={12: 5 << 30})
    assert (apple.footprint(12), apple.footprint(13)) == (5 << 30, 0)


def core(mask, efficiency=0, group=0):
    """One entry of Windows' list of cores, as <winnt.h> lays it out."""
    return struct.pack("<IIBB20xHQH6x", 0, 48, int(mask.bit_count() > 1), efficiency, 1, mask, group)


class Windows:
    """The functions of Windows, with the answers of one machine."""

    def __init__(self, listing=b"", affinity=0):
        self.listing, self.affinity = listing, affinity

    def GetLogicalProcessorInformationEx(self, relation, found, size):  # noqa: N802
        assert relation == 0
        size._obj.value, room = len(self.listing), size._obj.value
        if not self.listing or found is None or room < len(self.listing):
            return 0
        ctypes.memmove(found, self.listing, len(self.listing))
        return 1

    def GetProcessAffinityMask(self, process, mine, everyone):  # noqa: N802
        mine._obj.value = self.affinity
        return 1

    def GlobalMemoryStatusEx(self, found):  # noqa: N802
        assert found._obj.length == 64
        found._obj.free, found._obj.total = 3 << 30, 8 << 30
        return 1

    def K32GetProcessMemoryInfo(self, process, found, size):  # noqa: N802
        assert (process.value, found._obj.length, size) == (ctypes.c_void_p(-1).value, 72, 72)
        found._obj.peak = 5 << 20
        return 1


def test_fake_entries_have_the_size_of_windows_structs():
    assert len(core(1)) == 48


EIGHT_THREADS = b"".join(core(3 << 2 * i) for i in range(4))
HYBRID = b"".join([core(3, 1), core(12, 1), *(core(1 << 4 + i, 0) for i in range(4))])
TWO_GROUPS = b"".join(core(1 << i, group=g) for g in range(2) for i in range(48))


@pytest.mark.parametrize(
    ("listing", "affinity", "expected"),
    [
        (EIGHT_THREADS, 0xFF, 4),  # hyper-threads count once
        (EIGHT_THREADS, 0x07, 2),
        (HYBRID, 0xFF, 2),  # two fast cores with hyper-threads, four slow ones
        (HYBRID, 0xF0, 4),  # bound to the slow ones, which are the fastest that it may use
        (TWO_GROUPS, 0, 96),
        (b"", 0xFF, 16),
    ],
)
def test_windows_uses_the_fast_cores_of_the_affinity(listing, affinity, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(windows, "_kernel", lambda: Windows(listing, affinity))
    assert cores.default_threads() == expected


def test_windows_reports_free_total_and_peak_memory(monkeypatch):
    monkeypatch.setattr(windows, "_kernel", Windows)
    assert (windows.free_bytes(), windows.total_bytes(), windows.peak_bytes()) == (3 << 30, 8 << 30, 5 << 20)


@pytest.mark.skipif(sys.platform == "win32", reason="this is Windows")
def test_other_systems_have_no_windows_functions():
    with pytest.raises(OSError, match="not Windows"):
        windows.free_bytes()
