"""Reports about a Vulkan GPU: driver, arithmetic workarounds, identity."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from woolly.cli.commands import show_gpu
from woolly.errors import DeviceError, RequestError
from woolly.gguf import open_gguf
from woolly.llm.bit_identity import identity_of
from woolly.llm.disk_cache import pages_name
from woolly.models import trace
from woolly.runtime import BACKENDS, Options, get_backend, name_gpus
from woolly.runtime.gpu.gpu_info import Gpu
from woolly.runtime.program import About
from woolly.runtime.split import SplitBackend
from woolly.runtime.vulkan import gpu_discovery, physical_device
from woolly.runtime.vulkan.backend import VulkanBackend
from woolly.runtime.vulkan.bandwidth import find_bandwidth, measure_bandwidth


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model of two layers."""
    return write_tiny(TINY["llama"], tmp_path_factory.mktemp("faces") / "tiny.gguf")


def test_identity_is_that_of_the_cpu(opened, vulkan, tiny):
    with open_gguf(tiny) as file:
        plan, options = trace(file), Options(kv_type="f16", threads=1, max_rows=64)
        whole, cpu = (one.compile(plan, file.tensors, options) for one in (vulkan, get_backend("cpu")))
        part = SplitBackend(vulkan, True).compile(plan, file.tensors, replace(options, gpu_layers=1))
        places = [whole.about.place, part.about.place]  # what /health, the metrics and the page show
        assert places == [f"{opened.name}, vulkan", f"{opened.name}, vulkan+{cpu.about.level}"]
        found = [identity_of(program, file) for program in (whole, part, cpu)]
        assert {one.id for one in found} == {found[0].id} and found[0].backend == "cpu"
        # Pages lie in other ways, so nobody reads those of another.
        assert len({pages_name(program, found[0]) for program in (whole, part, cpu)}) == 3


def test_several_gpus_have_the_identity_of_one(vulkan, tiny):
    with open_gguf(tiny) as file:
        plan, options = trace(file), Options(kv_type="f16", threads=1, max_rows=64, device="vulkan:0,0")
        both = SplitBackend(vulkan, True).compile(plan, file.tensors, replace(options, gpu_layers="all"))
        assert len(both.about.shares) in (1, 2) and both.about.backend == "vulkan"
        cpu = get_backend("cpu").compile(plan, file.tensors, replace(options, device=None))
        assert identity_of(both, file).id == identity_of(cpu, file).id


def test_gpus_of_the_first_kind_are_listed(monkeypatch):
    kinds = [SimpleNamespace(kind=kind) for kind in ("discrete", "discrete", "integrated", "software")]
    monkeypatch.setattr(gpu_discovery, "open_driver", lambda: None)
    monkeypatch.setattr(physical_device, "list_physical", lambda driver: kinds)
    monkeypatch.setattr(gpu_discovery, "find_level", lambda: "vulkan")
    assert name_gpus("vulkan") == ["vulkan:0", "vulkan:1"]
    assert name_gpus() == ["vulkan:0", "vulkan:1"]  # tests see no GPU of another kind

    def none():
        raise DeviceError("Vulkan has no GPU here")

    monkeypatch.setattr(gpu_discovery, "find_level", none)
    assert name_gpus() == [] == name_gpus("vulkan")


def test_identity_of_a_gpu_with_different_bits_has_its_generation():
    assert About("cuda", "sm_90", 1, 0, device="NVIDIA Fake").bits == "cuda sm_90"
    assert About("cpu", "neon", 1, 0).bits == "cpu"


def test_bench_names_the_kind_and_show_the_driver(opened, vulkan, tiny, monkeypatch):
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: vulkan)
    reported = woolly("bench", tiny, "-p", "2", "-n", "0", "-r", "1", "-ub", "16", "--device", "vulkan", "-o", "md")
    assert "| VULKAN " in reported and f"\non {opened.name}\n" in reported
    assert ("bandwidth" in reported) == (opened.bandwidth is not None)
    placed = SplitBackend(vulkan, True).place
    monkeypatch.setattr(show_gpu, "plan_placement", lambda plan, tensors, options: placed(plan, tensors, options))
    monkeypatch.setattr(show_gpu, "find_gpu", lambda: Gpu(0, "Fake", "vulkan", 4 << 30, 8 << 30, None))
    printed = " ".join(woolly("show", tiny).split())
    assert f"gpu Fake, vulkan ({opened.driver}), 4.29 GB of 8.59 GB free; " in printed
    assert "Vulkan 1." in opened.driver


def test_gpu_bandwidth_is_measured_by_copies_and_fills(opened, monkeypatch):
    assert opened.bandwidth is None or not opened.physical.is_software
    assert measure_bandwidth(opened, 1 << 20) > 0
    monkeypatch.setattr(opened._shared, "physical", replace(opened.physical, timestamp_bits=0))
    assert find_bandwidth(opened) is None


def test_fill_bandwidth_is_used_if_copies_are_slower():
    work, clock = [], {"copy": 400, "zero": 100}
    device = SimpleNamespace(
        allocate=lambda n_bytes: 7,
        free=lambda at: None,
        copy=lambda source, to, n_bytes: work.append("copy"),
        zero=lambda at, n_bytes: work.append("zero"),
        mark=lambda: 0,
        wait=lambda: None,
        times=lambda marks: [clock[work[-1]]],
    )
    assert measure_bandwidth(device, 1000) == 1e10 and work.count("zero") == work.count("copy")
    clock.update(copy=0, zero=0)
    assert measure_bandwidth(device, 1000) is None


@pytest.mark.parametrize("error", [DeviceError, RequestError])
def test_full_gpu_has_no_bandwidth_and_caches_nothing(error):
    held = []

    def allocate(n_bytes):
        if held:
            raise error("no memory")
        held.append(7)
        return 7

    physical = SimpleNamespace(is_software=False, timestamp_bits=64)
    device = SimpleNamespace(physical=physical, memory=lambda: (8 << 30, 8 << 30), allocate=allocate, free=held.remove)
    assert find_bandwidth(device) is None and held == []


def test_driver_is_listed_with_its_arithmetic_workarounds(opened, monkeypatch):
    monkeypatch.setattr(opened._shared, "physical", replace(opened.physical, driver="RADV Mesa 25", api=0x403000))
    monkeypatch.setattr(opened._shared, "variant", "plain")
    assert opened.driver == "RADV Mesa 25, Vulkan 1.3"
    monkeypatch.setattr(opened._shared, "variant", "double")
    assert opened.driver == "RADV Mesa 25, Vulkan 1.3, with f64 in place of fused multiply-adds"


def test_cpu_driver_gives_one_warning(monkeypatch, caplog):
    found = SimpleNamespace(physical=SimpleNamespace(is_software=True), name="llvmpipe (a test)")
    monkeypatch.setattr("woolly.runtime.vulkan.device.open_device", lambda number: found)
    assert VulkanBackend().open() is VulkanBackend().open(1) is found
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("llvmpipe (a test) runs on the CPU instead of a GPU and is slow: device='cpu'")
