"""A model fits by the memory that is free, the memory that there is, and the disk."""

from woolly.machine.fit import Room
from woolly.machine.memory import available_memory, total_memory

GB = 10**9


def test_free_memory_decides_between_yes_and_tight():
    room = Room(memory=20 * GB, total=24 * GB, disk=1000 * GB)
    assert room.fit(GB) == room.fit(15 * GB) == "yes"
    assert room.fit(16 * GB) == room.fit(21 * GB) == "tight"
    assert room.fit(22 * GB) == room.fit(65 * GB) == "too large"


def test_full_disk_is_too_small_for_a_download():
    room = Room(memory=20 * GB, total=24 * GB, disk=4 * GB)
    assert room.fit(5 * GB) == "too large"
    assert room.fit(5 * GB, is_here=True) == room.fit(3 * GB) == "yes"


def test_total_memory_is_at_least_free_memory():
    assert 0 < available_memory() <= total_memory()
