"""`woolly show` says what fits the GPU of this machine, or why none is used."""

import json

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.cli.commands import show_gpu
from woolly.errors import DeviceError
from woolly.runtime import BACKENDS, Gpu
from woolly.runtime.cuda import CudaBackend


@pytest.fixture
def tiny(tmp_path):
    write_tiny(TINY["llama"], tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_machine_without_a_gpu_says_why(tiny, monkeypatch):
    def none():
        raise DeviceError("this machine has no NVIDIA driver", code="no_driver", remedy="install one")

    monkeypatch.setattr(show_gpu, "find_gpu", none)
    assert "gpu  none: this machine has no NVIDIA driver" in woolly("show", tiny)
    assert json.loads(woolly("show", tiny, "--json"))["gpu"] == {"unused": "this machine has no NVIDIA driver"}


@pytest.mark.parametrize(
    ("free", "says"),
    [
        (6 << 30, " (emulation), 6.44 GB of 8.59 GB free; 2 of 2 layers are on cuda:0"),
        (513 << 20, ", 537.9 MB of 8.59 GB free; none of 2 layers are on a GPU"),
    ],
)
def test_gpu_is_named_with_the_memory_it_needs(tiny, monkeypatch, free, says):
    monkeypatch.setattr(EmulatedDevice, "memory", lambda device: (free, 8 << 30))
    monkeypatch.setitem(BACKENDS, "cuda", lambda: CudaBackend(lambda *_: EmulatedDevice(), lambda: "sm_80"))
    monkeypatch.setattr(show_gpu, "find_gpu", lambda: Gpu(0, "NVIDIA Fake", "sm_80", free, 8 << 30, 2e12))
    printed = woolly("show", tiny)
    assert f"gpu  NVIDIA Fake, sm_80{says}" in " ".join(printed.split("\n"))
    fits = free > 1 << 30
    assert ("the GPU's memory gives 2,000 GB/s" in printed) is fits
    gpu = json.loads(woolly("show", tiny, "--json"))["gpu"]
    assert (gpu["fits"], gpu["weights"] > 0, gpu["bandwidth_gbs"]) == (fits, fits, 2000.0)
