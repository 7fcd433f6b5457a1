"""Forks: children leave GPUs alone, and close no program before."""

import gc
import weakref

import pytest

from woolly.runtime import forks


class Gpu:
    was_collecting = None

    def leave(self):
        self.was_collecting = gc.isenabled()


@pytest.mark.parametrize("is_collecting", [True, False])
def test_a_child_looks_for_no_garbage_until_its_gpus_are_left(is_collecting, monkeypatch):
    monkeypatch.setattr(forks, "_opened", weakref.WeakSet())  # not those of other tests
    gpu = Gpu()
    forks.leave_in_children(gpu)
    before = gc.isenabled()
    (gc.enable if is_collecting else gc.disable)()
    try:
        forks._begin()
        assert not gc.isenabled()
        forks._end_in_child()
        assert gpu.was_collecting is False and gc.isenabled() == is_collecting
    finally:
        (gc.enable if before else gc.disable)()
