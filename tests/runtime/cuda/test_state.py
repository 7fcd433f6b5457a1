"""The state of the CUDA backend: sizes, copies of pages and slots, and memory that is not there."""

import gc

import numpy as np
import pytest

from tests.runtime.cuda.emulated import EmulatedDevice, source
from woolly.errors import RequestError, UnsupportedError
from woolly.plan import Paged, Plan, Slot
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.state import GpuState, head_bytes
from woolly.runtime.state import PortableState

SEEN, WINDOWED, LATENT = Paged(2, 24, 40), Paged(1, 16, 16, window=64), Paged(1, 80, 40, v_in_k=True)


def plan_of(*entries):
    return Plan("case", (), (), tuple(entries))


@pytest.fixture
def device():
    made = EmulatedDevice(source("store"))
    yield made
    made.close()


@pytest.mark.parametrize(
    ("kv_type", "n_bytes"),
    [
        ("f16", 64 * (2 * 32 + 2 * 48 + 80)),
        ("f32", 128 * (2 * 32 + 2 * 48 + 80)),
        ("q8_0", 36 * (2 * 32 + 2 * 64 + 96)),
    ],
)
def test_page_pads_heads_to_full_pieces(kv_type, n_bytes, device):
    state = GpuState(device, plan_of(SEEN, LATENT), 3, kv_type)
    assert state.page_bytes == n_bytes
    assert state.n_bytes == 3 * n_bytes


def test_pages_and_slots_round_trip(device):
    state = GpuState(device, plan_of(SEEN, Slot(7), LATENT, Slot(2)), 4, "q8_0", 3)
    assert isinstance(state, PortableState)
    assert state.is_portable
    rng = np.random.default_rng(0)
    pages = {i: rng.integers(0, 256, state.page_bytes, np.uint8) for i in (3, 0)}
    slots = {i: rng.integers(0, 256, state.slot_bytes, np.uint8) for i in (2, 1)}
    assert not state.read_page(3).any()
    for i, data in pages.items():
        state.write_page(i, data)
    for i, data in slots.items():
        state.write_slot(i, data)
    for i, data in pages.items():
        np.testing.assert_array_equal(state.read_page(i), data)
    for i, data in slots.items():
        np.testing.assert_array_equal(state.read_slot(i), data)
    assert not state.read_page(1).any()
    for wrong in (-1, 4):
        with pytest.raises(ValueError, match=f"page or slot {wrong} is outside"):
            state.read_page(wrong)
    with pytest.raises(ValueError, match="5 bytes are not"):
        state.write_page(0, np.zeros(5, np.uint8))


def test_windows_have_their_own_pages_and_tables(device):
    state = GpuState(device, plan_of(SEEN, Slot(7), WINDOWED), 10, "f16", 2, [3])
    assert state.is_portable and state.page_sizes == (64 * (2 * 32 + 2 * 48), 64 * 32)
    assert state.page_bytes == sum(state.page_sizes)
    rng = np.random.default_rng(0)
    data = {(i, table): rng.integers(0, 256, state.page_sizes[table], np.uint8) for i, table in ((9, 0), (2, 1))}
    for (i, table), one in data.items():
        state.write_page(i, one, table)
    for (i, table), one in data.items():
        np.testing.assert_array_equal(state.read_page(i, table), one)
    with pytest.raises(ValueError, match="page or slot 3 is outside"):
        state.read_page(3, 1)
    assert state.n_bytes == 10 * 64 * (2 * 32 + 2 * 48) + 3 * 64 * 32 + 2 * 28
    rows = state.entries([Address(256), Address(512)])
    assert rows["pages"].tolist() == [256, 0, 512]
    assert (rows["k"] != rows["v"]).tolist() == [True, False, True]
    assert [bool(address) for address in state.slots()] == [False, True, False]
    assert GpuState(device, plan_of(WINDOWED), 10, "f16", 0, [10]).page_sizes == (0, 64 * 32)


def test_last_reference_frees_the_memory(device):
    before = device.memory()
    state = GpuState(device, plan_of(SEEN, Slot(7)), 10, "f16", 2)
    assert device.memory() != before
    del state
    gc.collect()
    assert device.memory() == before


def test_out_of_memory_gives_an_error_with_the_numbers(device, monkeypatch):
    before, allocate = device.memory(), device.allocate

    def no_more(n_bytes):
        if n_bytes > 34_000:
            raise RequestError("out of memory")
        return allocate(n_bytes)

    monkeypatch.setattr(device, "allocate", no_more)
    # K fits, and is given back.
    with pytest.raises(RequestError) as raised:
        GpuState(device, plan_of(Slot(3), Paged(1, 512, 576)), 1, "f16", 1)
    assert str(raised.value) == "a cache of 32 tokens takes 0.0 GB, but the GPU has 8.6 GB free; lower ctx or kv_tokens"
    page = 2 * head_bytes(16, "f16")
    monkeypatch.setattr(device, "memory", lambda: (100 * page, 1 << 30))
    with pytest.raises(RequestError, match=r"lower ctx or kv_tokens: 3072 tokens would fit$"):
        GpuState(device, plan_of(Paged(1, 16, 16)), 200, "f16")
    monkeypatch.undo()
    assert device.memory() == before


def test_too_long_heads_are_rejected(device):
    with pytest.raises(UnsupportedError, match="heads of 592 columns do not fit the cache of GPUs, which"):
        GpuState(device, plan_of(Paged(1, 592, 16)), 1, "f16")
