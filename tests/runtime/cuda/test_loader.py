"""Weights reach the device whole and in order, whichever thread brings a piece; what fails is told once for all."""

import ctypes
import threading
import time
from functools import partial

import numpy as np
import pytest

from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.errors import DeviceError, RequestError
from woolly.gguf import Tensor
from woolly.gguf.mapped_file import MemoryMap
from woolly.quant import GGMLType
from woolly.runtime.gpu import loader
from woolly.runtime.gpu.emitter import Array, Fill, TensorPart
from woolly.runtime.gpu.loader import Loader
from woolly.runtime.program import CancelledRun
from woolly.runtime.weight_views import WeightViews

ROWS, COLUMNS = 40, 25


class Weights:
    """Matrices of which every other one is packed from pieces, and before each an array that packing reads."""

    def __init__(self, n=6):
        self.device = EmulatedDevice()
        self.tables = [np.random.default_rng(i).random((ROWS, COLUMNS), np.float32) for i in range(n)]
        self.tensors = {
            str(i): Tensor(str(i), GGMLType.F32, table.shape, 0, MemoryMap(str(i), table))
            for i, table in enumerate(self.tables)
        }
        self.places = [self.device.allocate(table.nbytes) for table in self.tables]
        self.factors = [self.device.allocate(4) for _ in self.tables]
        self.weights = []
        for i, (place, factor) in enumerate(zip(self.places, self.factors, strict=True)):
            self.weights.append(Array(factor, 4, partial(np.full, 1, i + 1, np.float32), is_first=True))
            pack = partial(self.pack, factor) if i % 2 else None
            self.weights.append(Fill(place, self.tables[i].nbytes, (TensorPart(str(i), pack, 8),)))
        self.n_bytes = self.device.memory()
        self.loader = Loader(self.device, WeightViews(self.tensors), self.weights)

    def pack(self, factor, device, weight, staged, first, n_rows):
        rows = self.numbers(staged, n_rows * COLUMNS)
        self.numbers(weight + 4 * first * COLUMNS, rows.size)[:] = rows * self.numbers(factor, 1)

    def numbers(self, address, n):
        return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_float)), (n,))

    def check(self, n):
        for i in range(n // 2):
            want = self.tables[i] * (i + 1) if i % 2 else self.tables[i]
            assert np.array_equal(self.numbers(self.places[i], want.size), want.ravel())


@pytest.fixture(params=[1, 5])
def weights(request, monkeypatch):
    monkeypatch.setattr(loader, "default_threads", lambda: request.param)
    monkeypatch.setattr(loader, "_STAGED", 16 * 4 * COLUMNS)
    before = {*threading.enumerate()}  # such as those of a program that another file has dropped
    made = Weights()
    yield made
    made.loader.end()
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("woolly-upload")]
    assert made.device.memory() == made.n_bytes  # nothing is left of what pieces were staged in
    made.device.close()


def test_weights_are_complete_after_waiting(weights):
    assert weights.loader.n_missing == weights.loader.n_bytes
    for n in (0, 3, 4, len(weights.weights)):
        weights.loader.wait(n)
        weights.check(n)
        assert weights.loader.n_missing <= sum(weight.n_bytes for weight in weights.weights[n:])


def test_dependent_packing_comes_after_its_source(weights):
    """Gate and up share bytes: the second is packed into the tiles that the first has made."""
    made = weights.numbers(weights.places[0], ROWS * COLUMNS)

    def pack(is_second, device, weight, staged, first, n_rows):
        rows = weights.numbers(staged, n_rows * COLUMNS).copy()
        time.sleep(0 if is_second else 0.01)  # time enough for another thread's piece
        here = made[first * COLUMNS :][: rows.size]
        here[:] = here * 2 + rows if is_second else rows

    parts = tuple(TensorPart(name, partial(pack, name == "1"), 8) for name in "01")
    fill = Fill(weights.places[0], made.nbytes, parts)
    both = Loader(weights.device, weights.loader._views, [fill])
    both.wait(1)
    both.end()
    assert np.array_equal(made, (weights.tables[0] * 2 + weights.tables[1]).ravel())


def test_interrupted_loading_resumes(weights):
    for _ in range(3):
        weights.loader.start()
        weights.loader.start()  # which changes nothing
        weights.loader.end()
    weights.loader.wait(len(weights.weights))
    weights.check(len(weights.weights))


def test_unreadable_file_fails_every_wait(weights, monkeypatch):
    def broken(self):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Tensor, "data", property(broken))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            weights.loader.wait(2)


def test_device_out_of_memory_or_lost_fails_every_wait(weights, monkeypatch):
    for name, error in (
        ("allocate", RequestError("the GPU has too little free memory", code="device_memory")),
        ("reach", DeviceError("the GPU failed", code="lost")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(EmulatedDevice, name, lambda *_, error=error: (_ for _ in ()).throw(error))
            broken = Loader(weights.device, weights.loader._views, weights.weights)
            for _ in range(2):
                with pytest.raises(type(error), match=str(error)):
                    broken.wait(len(weights.weights))
            broken.end()


def test_memory_freed_early_is_not_freed_twice(weights, monkeypatch):
    """Another thread may have it by then."""
    monkeypatch.setattr(loader, "default_threads", lambda: 1)
    tables = {"small": np.ones((8, COLUMNS), np.float32), "large": np.ones((16, COLUMNS), np.float32)}
    tensors = {n: Tensor(n, GGMLType.F32, t.shape, 0, MemoryMap(n, t)) for n, t in tables.items()}
    fills = [Fill(weights.places[0], t.nbytes, (TensorPart(n, lambda *_: None, 8),)) for n, t in tables.items()]
    allocate, asked = EmulatedDevice.allocate, []

    def no_more(self, n_bytes):
        asked.append(n_bytes)
        if len(asked) > 1:
            raise RequestError("the GPU has too little free memory", code="device_memory")
        return allocate(self, n_bytes)

    monkeypatch.setattr(EmulatedDevice, "allocate", no_more)
    broken = Loader(weights.device, WeightViews(tensors), fills)
    with pytest.raises(RequestError, match="too little free memory"):
        broken.wait(2)
    broken.end()
    assert asked == [t.nbytes for t in tables.values()]


def test_loading_can_be_ended_while_it_starts(weights, monkeypatch):
    """Ending joins only threads that were started; the others do the rest of the work."""
    start, ending = threading.Thread.start, []

    def start_and_end(self):
        if not ending:
            ending.append(threading.Thread(target=weights.loader.end))
            start(ending[0])
            time.sleep(0.01)  # time enough to join one that is not there yet
        elif self.name.startswith("woolly-upload") and self.name != "woolly-upload-0":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_and_end)
    weights.loader.start()
    ending[0].join()
    weights.loader.wait(len(weights.weights))
    weights.check(len(weights.weights))


def test_cancelled_waiter_returns_and_loading_continues(weights, monkeypatch):
    is_held, may_go, is_cancelled = threading.Event(), threading.Event(), threading.Event()
    fill = Loader._fill

    def held(self, *arguments):
        is_held.set()
        assert may_go.wait(60)
        fill(self, *arguments)

    monkeypatch.setattr(Loader, "_fill", held)

    def cancel():
        assert is_held.wait(60)
        is_cancelled.set()
        weights.loader.wake()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(CancelledRun):
            weights.loader.wait(len(weights.weights), is_cancelled.is_set)
    finally:
        may_go.set()
        thread.join()
    weights.loader.wait(len(weights.weights))
    weights.check(len(weights.weights))
