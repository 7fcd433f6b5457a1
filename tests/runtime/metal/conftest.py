"""One emulated GPU of Metal for all tests: the text of the archive as C++, behind objects that stand in for Apple's."""

import pytest

from tests.runtime.metal.fake import FakeMetal
from tests.runtime.metal.text import build, texts
from woolly.runtime.metal.backend import MetalBackend
from woolly.runtime.metal.device import MetalDevice, open_device
from woolly.runtime.metal.memory import MetalMemory

#: What the models of these tests launch, compiled at once; `scripts/gpu text` runs all that there are.
KERNELS = (
    *(
        "probe",
        "pack",
        "embed_q4_k",
        "norm_quantize_256",
        "quantize_256",
        "glu_quantize_256",
        "output_rows",
        "scatter_rows",
        "store_f16",
    ),
    *("linear_one_q4_k", "linear_two_q4_k", "linear_four_q4_k", "linear_many_q4_k"),
    *(
        "attend_f16_128",
        "attend_parts_f16_128",
        "attend_row_f16_128",
        "attend_staged_f16",
        "attend_merge_f16_128",
        "merge_quantize_256",
    ),
    *(f"attend_tile_{kind}" for kind in ("f32", "f16", "q8_0", "q4", "any", "plain_f32", "plain_f16", "plain_q8_0")),
    *("embed_f32", "store_f32", "store_q8_0", "store_any", "hadamard_any", "attend_merge_any_128"),
    *("attend_q4_128", "attend_parts_q4_128", "attend_any_128", "attend_parts_any_128"),
)


@pytest.fixture(scope="session")
def native():
    """The kernels as C++."""
    return build(KERNELS)


@pytest.fixture
def fake(native, monkeypatch):
    """Metal on one GPU, whose every allocation ends at a page that nobody may touch."""
    monkeypatch.setattr(MetalMemory, "BLOCK", 1)
    known = texts()
    return FakeMetal(native, {known[name]: name for name in KERNELS})


@pytest.fixture
def device(fake):
    """An open GPU, after its probe. All that it made is freed with it."""
    device = open_device(driver=fake)
    yield device
    fake.faults.clear()
    was_lost = device._shared.lost is not None
    device.close()
    assert was_lost or fake.left() == []


@pytest.fixture
def metal(device):
    """A backend whose programs share the device."""
    return MetalBackend(lambda *_: MetalDevice(device._shared, is_first=False), lambda: device.level)
