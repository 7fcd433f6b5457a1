"""A model on a GPU counts against the memory of that GPU, not against the system's."""

import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from woolly.engine.loading import memory_estimate
from woolly.errors import DeviceError, RequestError
from woolly.gguf import open_gguf
from woolly.runtime import Gpu
from woolly.serving.errors import ApiError
from woolly.serving.model_manager import eviction
from woolly.serving.model_manager.catalog import ModelCatalog
from woolly.serving.model_manager.loaded_model import ModelSlot
from woolly.serving.model_manager.memory_check import MemoryEstimate, check_memory, estimate
from woolly.serving.settings.options import ModelOptions
from woolly.serving.settings.table import Settings

GB = 10**9
GPUS = [Gpu(number, "NVIDIA Fake", "sm_90", free, 80 * GB, 3e12) for number, free in enumerate((20 * GB, 40 * GB))]


@pytest.fixture
def machine(monkeypatch):
    """Two GPUs, the same for every kind that is asked for, and a system with next to no memory; gives those kinds."""
    kinds = []
    monkeypatch.setattr(memory_estimate, "find_gpu", lambda number, kind: kinds.append(kind) or GPUS[number])
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: GB)
    return kinds


def needs(gpus, n_bytes, **more):
    return MemoryEstimate(n_bytes, 0, 512, tuple(gpus), **more)


def test_estimate_names_the_gpu_for_the_model(folder, machine):
    for options, kinds, gpus, may_split in (
        (ModelOptions(ctx=64), [None], GPUS[:1], True),
        (ModelOptions(ctx=64, backend="cuda"), ["cuda"], GPUS[:1], False),
        (ModelOptions(ctx=64, device="cuda:1"), ["cuda"], GPUS[1:], False),
        (ModelOptions(ctx=64, device="cuda:0,1"), ["cuda", "cuda"], GPUS, False),
        (ModelOptions(ctx=64, device="vulkan:1"), ["vulkan"], GPUS[1:], False),
        (ModelOptions(ctx=64, backend="cpu"), [], [], False),
    ):
        machine.clear()
        found = estimate(folder / "one.gguf", options)
        assert (machine, list(found.gpus), found.may_split) == (kinds, gpus, may_split)


def test_without_a_gpu_the_cpu_is_used_unless_a_gpu_is_requested(folder, monkeypatch):
    def none(number, kind):
        raise DeviceError("no NVIDIA GPU was found", code="no_driver")

    monkeypatch.setattr(memory_estimate, "find_gpu", none)
    assert estimate(folder / "one.gguf", ModelOptions(ctx=64)).gpus == ()
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        estimate(folder / "one.gguf", ModelOptions(ctx=64, device="cuda"))


def test_model_too_large_for_a_gpu_is_rejected_with_its_name(machine):
    check_memory("one", needs(GPUS[:1], 19 * GB))
    with pytest.raises(
        ApiError, match=r"needs about 25\.00 GB .*, but only 19\.46 GB are available on NVIDIA Fake$"
    ) as no:
        check_memory("one", needs(GPUS[:1], 25 * GB))
    assert (no.value.status, no.value.code) == (503, "insufficient_memory")
    check_memory("one", needs(GPUS, 50 * GB))
    check_memory("one", needs(GPUS[:1], 20 * GB, may_split=True))  # the system has the rest
    with pytest.raises(ApiError, match=r"but only 20\.46 GB are available on NVIDIA Fake and in system memory$"):
        check_memory("one", needs(GPUS[:1], 25 * GB, may_split=True))


def test_experts_on_the_cpu_need_no_gpu_memory(tmp_path, machine):
    path = write_tiny(FAMILIES["qwen3moe"], tmp_path / "experts.gguf")
    with open_gguf(path) as file:
        experts = {name: tensor.n_bytes for name, tensor in file.tensors.items() if "_exps" in name}
    sizes = [sum(n for name, n in experts.items() if name.startswith(f"blk.{i}.")) for i in (0, 1)]
    whole, first = (
        estimate(path, ModelOptions(ctx=64, backend="cuda", n_cpu_moe=layers)).cpu_weights for layers in ("all", 1)
    )
    assert sum(sizes) <= whole < sum(sizes) * 1.2 and sizes[0] <= first < sum(sizes)
    assert estimate(path, ModelOptions(ctx=64, backend="cuda")).cpu_weights == 0
    assert estimate(path, ModelOptions(ctx=64, backend="cpu", n_cpu_moe="all")).cpu_weights == 0


def test_experts_on_the_cpu_need_system_memory(machine, monkeypatch):
    with pytest.raises(ApiError, match=r"needs about 15\.00 GB for experts in system memory, but only 1\.00 GB"):
        check_memory("one", needs(GPUS[:1], 30 * GB, cpu_weights=15 * GB))
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 16 * GB)
    check_memory("one", needs(GPUS[:1], 30 * GB, cpu_weights=15 * GB))
    with pytest.raises(ApiError, match=r"but only 19\.46 GB are available on NVIDIA Fake$"):
        check_memory("one", needs(GPUS[:1], 30 * GB, cpu_weights=5 * GB))


def test_only_models_in_the_needed_memory_are_unloaded(folder, machine):
    info = ModelCatalog(folder).find("one")
    on_first, on_second, on_cpu = (
        ModelSlot(info, Settings(), "ready", needs=needs(gpus, 15 * GB)) for gpus in (GPUS[:1], GPUS[1:], [])
    )
    wanted = ModelSlot(info, Settings(), needs=needs(GPUS[:1], 30 * GB))
    assert eviction.choose_evictions(wanted, [on_second, on_cpu, on_first], models_max=4) == [on_first]
    with pytest.raises(ApiError, match="available on NVIDIA Fake"):
        eviction.choose_evictions(wanted, [on_second, on_cpu], models_max=4)


def test_all_models_together_respect_the_memory_cap(folder, machine, monkeypatch):
    monkeypatch.setattr(memory_estimate, "available_memory", lambda: 100 * GB)
    info = ModelCatalog(folder).find("one")
    old, newer, on_gpu = (
        ModelSlot(info, Settings(), "ready", needs=needs(gpus, 9 * GB)) for gpus in ([], [], GPUS[:1])
    )
    old.last_used, newer.last_used = 1, 2
    wanted = ModelSlot(info, Settings(), needs=needs([], 6 * GB))
    loaded = [newer, on_gpu, old]
    for cap, evicted in ((None, []), (26 * GB, []), (20 * GB, [old]), (7 * GB, [old, newer])):
        assert eviction.choose_evictions(wanted, loaded, None, cap) == evicted
    newer.users = 1  # no answer is cut off
    with pytest.raises(
        ApiError, match=r"one needs about 6\.10 GB in addition to 9\.10 GB of other models, but models_memory is 7"
    ):
        eviction.choose_evictions(wanted, loaded, None, 7 * GB)
    with pytest.raises(ApiError, match=r"needs about 6\.10 GB, but models_memory is 6\.00 GB$"):
        eviction.choose_evictions(wanted, [], None, 6 * GB)
    newer.users = 0
    eviction.check_reload(old, needs([], 12 * GB), loaded, 13 * GB)
    with pytest.raises(ApiError, match="models_memory is 12"):
        eviction.check_reload(old, needs([], 12 * GB), loaded, 12 * GB)


def test_memory_cap_replaces_the_model_count_limit():
    assert Settings().max_models == 1 and Settings(models_memory="24GB").max_models is None
    assert Settings(models_max=0).max_models is None and Settings(models_max=3, models_memory="24GB").max_models == 3
    assert Settings(models_memory="24GB").models_bytes == 24 * GB
    with pytest.raises(RequestError, match="models_memory is 'much'; expected bytes"):
        Settings(models_memory="much")
