"""The probe: what a GPU computes otherwise is refused, or is left to kernels."""

import numpy as np
import pytest

from woolly.errors import DeviceError
from woolly.runtime.gpu import probe
from woolly.runtime.gpu.device import Address
from woolly.runtime.vulkan import context as contexts
from woolly.runtime.vulkan import device as driving
from woolly.runtime.vulkan.structs import constants


def expect_otherwise(monkeypatch, which):
    """Has the probe expect another number than the CPU's of one result."""
    expected = probe._expected

    def other(*numbers):
        found = expected(*numbers)
        found[which] = found[which].copy()
        found[which][7] = np.nextafter(found[which][7], np.float32(np.inf))
        return found

    monkeypatch.setattr(probe, "_expected", other)


@pytest.mark.parametrize("which", [i for i, name in enumerate(probe.NAMES) if name != probe.OWN_HALVES])
def test_gpu_with_different_arithmetic_is_rejected(which, own, monkeypatch):
    expect_otherwise(monkeypatch, which)
    with pytest.raises(DeviceError, match=f"computes {probe.NAMES[which]} differently from the CPU"):
        driving.choose_variant(own, own._shared)


@pytest.mark.parametrize("is_exact", [True, False])
def test_incorrect_f16_conversion_of_a_driver_is_done_in_software(is_exact, own, monkeypatch):
    if not is_exact:
        expect_otherwise(monkeypatch, probe.NAMES.index(probe.OWN_HALVES))
    driving.choose_variant(own, own._shared)
    assert own._shared.converts_halves == is_exact
    said = []
    monkeypatch.setattr(contexts, "constants", lambda *numbers: said.append(numbers) or constants(*numbers))
    own.prepare("embed_f16", 0)
    assert said == [(int(is_exact),)]


def test_f16_is_exact_in_software_and_with_a_conforming_driver(own):
    table = np.arange(1 << 16, dtype=np.uint16)
    place, y = own.allocate(table.nbytes), own.allocate(4 * len(table))
    own.upload(place, table)
    batch = own.allocate(1024)
    head = np.zeros(1024, np.uint8)
    head[:16].view(np.int32)[:3] = 1, 1, 1
    head[32:40].view(np.uint64)[0] = batch + 512  # tokens: the first row of the table
    own.upload(batch, head)
    found = []
    for converts in (False, own._shared.converts_halves):
        own._shared.converts_halves = converts
        args = (batch, place, Address(0), Address(0), y, 1 << 16, 1 << 15, 0, 1, Address(0), 1)
        own.launch("embed_f16", (1024, 1), 64, 0, args)
        out = np.zeros(len(table), np.uint32)
        own.download(y, out)
        own.wait()
        found.append(out)
    numbers = ~np.isnan(table.view(np.float16))
    want = table.view(np.float16).astype(np.float32).view(np.uint32)
    for one in found:
        np.testing.assert_array_equal(one[numbers], want[numbers])
