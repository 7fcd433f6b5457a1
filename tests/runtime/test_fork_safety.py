"""Forks: children leave GPUs alone, and close no program before."""

import gc
import os

import pytest

from woolly.runtime import fork_safety


class Gpu:
    was_collecting = None

    def leave(self):
        self.was_collecting = gc.isenabled()


class Broken:
    def leave(self):
        raise ValueError("a fault")


def is_open():
    """True if another fork could begin."""
    taken = fork_safety._lock.acquire(blocking=False)
    if taken:
        fork_safety._lock.release()
    return taken and fork_safety._collected == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("is_collecting", [True, False])
def test_child_collects_no_garbage_until_its_gpus_are_released(is_collecting, monkeypatch):
    gpu, before = Gpu(), gc.isenabled()
    monkeypatch.setattr(fork_safety, "_opened", [Broken(), gpu])
    (gc.enable if is_collecting else gc.disable)()
    try:
        if (child := os.fork()) == 0:  # pragma: no cover - in the child
            is_right = gpu.was_collecting is False and gc.isenabled() == is_collecting and is_open()
            os._exit(0 if is_right else 1)
        assert gc.isenabled() == is_collecting and is_open() and gpu.was_collecting is None
    finally:
        (gc.enable if before else gc.disable)()
    assert os.waitpid(child, 0)[1] == 0


def test_closed_devices_are_forgotten():
    gpu = Gpu()
    fork_safety.release_in_children(gpu)
    assert gpu in fork_safety._opened
    del gpu
    gc.collect()
    assert not any(isinstance(one, Gpu) for one in fork_safety._opened)
