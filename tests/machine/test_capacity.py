"""A model fits by the memory that is free, the memory that there is, and the disk."""

from woolly.machine.capacity import Capacity
from woolly.machine.memory import available_memory, total_memory

GB = 10**9


def test_free_memory_decides_between_yes_and_tight():
    capacity = Capacity(memory=20 * GB, total=24 * GB, disk=1000 * GB)
    assert capacity.fit(GB) == capacity.fit(15 * GB) == "yes"
    assert capacity.fit(16 * GB) == capacity.fit(21 * GB) == "tight"
    assert capacity.fit(22 * GB) == capacity.fit(65 * GB) == "too large"


def test_full_disk_is_too_small_for_a_download():
    capacity = Capacity(memory=20 * GB, total=24 * GB, disk=4 * GB)
    assert capacity.fit(5 * GB) == "too large"
    assert capacity.fit(5 * GB, is_here=True) == capacity.fit(3 * GB) == "yes"


def test_total_memory_is_at_least_free_memory():
    assert 0 < available_memory() <= total_memory()
