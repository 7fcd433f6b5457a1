"""The driver's answers become sentences and typed errors; a device that failed stays failed."""

import gc
import threading

import numpy as np
import pytest

from native.cuda.compile import archive, packs
from tests.runtime.cuda.fake import ATTRIBUTES, FakeLibrary
from woolly.errors import DeviceError, RequestError
from woolly.runtime import fork_safety
from woolly.runtime.cuda import context, gpu_discovery, libcuda
from woolly.runtime.cuda import device as module
from woolly.runtime.cuda.device import open_device
from woolly.runtime.cuda.kernel_archive import Archive
from woolly.runtime.cuda.libcuda import Driver
from woolly.runtime.gpu.device import Address


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """An archive of one kernel, in place of the one that a build makes, and no sources."""
    path = tmp_path / "kernels.bin"
    path.write_bytes(archive({"sm_90a": [(b"cubin", ["scale_rows"])], "compute_80": [(b"ptx\0", ["scale_rows"])]}))
    monkeypatch.setattr(module, "Archive", lambda: Archive(path))
    monkeypatch.setattr(module.KernelCompiler, "find", lambda: None)


@pytest.fixture
def library():
    return FakeLibrary()


@pytest.fixture
def device(library, kernels):
    device = open_device(0, Driver(library), limit_s=0.05)
    yield device
    device.close()


def test_missing_driver_is_reported(monkeypatch):
    monkeypatch.setattr(libcuda, "_library", lambda: "libthere-is-none.so")
    monkeypatch.setattr(libcuda, "_found", None)
    for _ in range(2):
        with pytest.raises(DeviceError, match="no NVIDIA driver") as caught:
            libcuda.open_driver()
        assert caught.value.code == "no_driver"


def test_failed_driver_is_not_initialized_again(library, monkeypatch):
    """Forked children ask again, and its start may hang in them."""
    monkeypatch.setattr(libcuda.ctypes, "CDLL", lambda _: library)
    for code, kind in ((100, DeviceError), (2, RequestError)):
        library.results["cuInit"] = code
        library.calls.clear()
        monkeypatch.setattr(libcuda, "_found", None)
        for _ in range(3):
            with pytest.raises(kind, match=r"no NVIDIA GPU was found|too little free memory"):
                libcuda.open_driver()
        assert library.calls["cuInit"] == 1


def test_forked_child_gets_an_error_about_its_parents_driver(library, monkeypatch):
    monkeypatch.setattr(libcuda.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(libcuda, "_found", None)
    assert libcuda.open_driver() is libcuda.open_driver()
    calls = library.calls.copy()
    monkeypatch.setattr(libcuda.os, "getpid", lambda: -1)
    with pytest.raises(DeviceError, match="by the parent process, which forked this one; start processes with spawn"):
        libcuda.open_driver()
    assert library.calls == calls


@pytest.mark.parametrize("old", [{"version": 11_040}, {"missing": {"cuStreamBeginCapture_v2"}}])
def test_old_driver_is_rejected_with_the_required_version(old):
    library = FakeLibrary()
    vars(library).update(old)
    with pytest.raises(DeviceError, match="525 or later") as caught:
        Driver(library)
    assert caught.value.code == "old_driver"


def test_driver_without_a_gpu_says_so(library):
    library.results["cuInit"] = 100
    with pytest.raises(DeviceError, match="no NVIDIA GPU was found"):
        Driver(library)


def test_missing_gpu_index_is_a_request_error(library, kernels):
    with pytest.raises(RequestError, match=r"this machine has 1 NVIDIA GPU: numbers start at 0$") as caught:
        open_device(1, Driver(library))
    assert caught.value.field == "device"


def test_gpu_of_an_old_generation_is_rejected(library, kernels, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, 75, 7)
    with pytest.raises(DeviceError, match="NVIDIA Fake has compute capability sm_70, but sm_80 or later is needed"):
        open_device(0, Driver(library))


@pytest.mark.parametrize("name", ["cuStreamCreate", "cuEventCreate"])
def test_device_that_cannot_be_opened_leaves_nothing_behind(library, kernels, name):
    library.results[name] = 304
    with pytest.raises(DeviceError):
        open_device(0, Driver(library))
    assert library.calls["cuDevicePrimaryCtxRelease_v2"] == library.calls["cuDevicePrimaryCtxRetain"] == 1
    assert library.calls["cuStreamDestroy_v2"] == 1


def test_out_of_memory_is_reported_with_the_numbers(device, library):
    with pytest.raises(RequestError, match=r"NVIDIA Fake has 1\.1 GB free of 2\.1 GB, and 5\.0 GB more are") as caught:
        device.allocate(5 * 10**9)
    assert caught.value.code == "device_memory" and caught.value.limit == 1 << 30
    assert device.allocate(100)  # the device is none the worse


def test_upload_round_trips(device, monkeypatch):
    monkeypatch.setattr(module, "_STAGE", 64)
    data = np.arange(100, dtype=np.float32)
    address = device.allocate(data.nbytes)
    device.upload(address, data)
    out = device.pinned(data.nbytes)
    device.download(address, out)
    device.wait()
    assert np.array_equal(out.view(np.float32), data)


def test_arguments_have_the_width_of_their_type(device, library):
    device.launch("scale_rows", (3, 2), 64, 50_000, (Address(1 << 40), -7, 0.5))
    assert library.launched == [((3, 2, 1), 64, 50_000, 1 << 40, -7, 0.5)]


def test_early_kernel_is_a_dependent_launch(device, library):
    device.launch("scale_rows", (3, 2), 64, 50_000, (Address(1 << 40), -7, 0.5), early=True)
    assert library.launched == [((3, 2, 1), 64, 50_000, 1 << 40, -7, 0.5, "early")]
    assert library.calls["cuFuncSetAttribute"] == 2 and library.calls["cuModuleLoadData"] == 1
    device.launch("scale_rows", (1,), 64, 0, ())
    assert library.calls["cuFuncSetAttribute"] == 2 and library.calls["cuModuleLoadData"] == 1


def test_cluster_count_is_limited_to_those_that_run_concurrently(device, library):
    asked = []

    def answer(out, function, config):
        asked.append((config._obj.x, config._obj.threads_x, config._obj.shared, config._obj.n_attributes))
        out._obj.value = 14
        return 0

    library.results["cuOccupancyMaxActiveClusters"] = answer
    for n_blocks in (132, 6, 132):
        device.launch("scale_rows", (n_blocks,), 384, 100_000, (Address(1 << 40), -7, 0.5), early=True, group=2)
    assert [launched[0] for launched in library.launched] == [(28, 1, 1), (6, 1, 1), (28, 1, 1)]
    assert asked == [(2, 384, 100_000, 0)]


def test_kernels_of_an_earlier_generation_are_not_launched_early(library, kernels, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, 75, 12)
    device = open_device(0, Driver(library))
    assert (device.architecture, device.kernels_for) == (120, 80)
    device.launch("scale_rows", (1,), 64, 0, (Address(1 << 40), -7, 0.5), early=True)
    assert library.launched == [((1, 1, 1), 64, 0, 1 << 40, -7, 0.5)]
    device.close()


def test_ptx_is_rejected_by_a_driver_that_cannot_compile_it(library, kernels, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, 75, 12)
    library.version = 12_040
    with pytest.raises(DeviceError, match="driver 575 or later") as caught:
        open_device(0, Driver(library))
    assert caught.value.code == "old_driver"


def test_unknown_kernel_is_named(device):
    with pytest.raises(DeviceError, match="no kernel rope_rows"):
        device.launch("rope_rows", (1,), 32, 0, ())


def test_each_thread_enters_the_context_once(device, library):
    before = library.calls["cuCtxSetCurrent"]
    thread = threading.Thread(target=lambda: [device.memory() for _ in range(3)])
    thread.start()
    thread.join()
    assert library.calls["cuCtxSetCurrent"] == before + 1


def test_hanging_kernel_ends_the_device_and_not_the_caller(device, library):
    library.results["cuEventQuery"] = libcuda.NOT_READY
    with pytest.raises(DeviceError, match=r"did not finish its work within 0\.05 seconds; restart the process"):
        device.wait()
    library.results.clear()
    with pytest.raises(DeviceError, match="did not finish") as caught:
        device.launch("scale_rows", (1,), 32, 0, ())
    assert caught.value.code == "lost"


def test_lost_gpu_repeats_the_driver_error(device, library):
    library.results["cuEventQuery"] = 700
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"illegal memory access .*\(CUDA_ERROR_ILLEGAL_ADDRESS from cuEventQ"):
            device.wait()


def test_rejected_driver_call_does_not_end_the_device(device, library):
    library.results["cuLaunchKernel"] = 701
    with pytest.raises(DeviceError, match=r"refused a call: .* from cuLaunchKernel") as caught:
        device.launch("scale_rows", (1,), 32, 0, ())
    assert caught.value.code == "refused"
    library.results.clear()
    device.launch("scale_rows", (1,), 32, 0, ())
    device.wait()
    library.results["cuEventQuery"] = 12345  # what the work itself failed with
    with pytest.raises(DeviceError) as caught:
        device.wait()
    assert caught.value.code == "lost"


def test_failed_capture_is_ended(device, library):
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: 1 / 0)
    assert library.calls["cuStreamEndCapture"] == library.calls["cuGraphDestroy"] == 1
    library.results["cuGraphInstantiateWithFlags"] = 2
    with pytest.raises(RequestError, match="too little free memory"):
        device.capture(lambda: None)
    assert library.calls["cuGraphDestroy"] == 2
    library.results.clear()
    graph = device.capture(lambda: device.launch("scale_rows", (1,), 32, 0, ()))
    device.replay(graph)
    device.forget(graph)
    assert library.calls["cuGraphLaunch"] == 1 and library.calls["cuGraphExecDestroy"] == 1


def test_event_times_are_between_their_marks(device, library):
    assert device.times([device.mark() for _ in range(3)]) == [250_000, 250_000]
    n_events = library.calls["cuEventCreate"]
    library.results["cuEventElapsedTime"] = 600
    with pytest.raises(DeviceError):
        device.times([device.mark() for _ in range(3)])
    device.reach(device.mark())
    assert library.calls["cuEventCreate"] == n_events  # those of the first three marks, again and again


def test_close_frees_all_memory_except_arrays_in_use(device, library):
    device.allocate(10)
    second = device.new_stream()
    second.upload(device.allocate(4), np.zeros(1, np.float32))
    seen = device.pinned(10)
    second.close()
    device.close()
    device.close()
    del second
    gc.collect()
    assert not library.kept and len(library.pinned) == 1
    with pytest.raises(DeviceError, match="closed"):
        device.allocate(1)
    del seen
    gc.collect()
    assert not library.pinned
    assert library.calls["cuDevicePrimaryCtxRetain"] == library.calls["cuDevicePrimaryCtxRelease_v2"]


def test_no_driver_call_after_a_fault(device, library):
    seen = device.pinned(10)
    seen[:] = 7
    address = device.allocate(10)
    library.results["cuEventQuery"] = 700
    with pytest.raises(DeviceError, match="illegal"):
        device.wait()
    before = library.calls.copy()
    device.free(address)
    device.close()  # it could wait for a kernel that never ends
    assert (seen == 7).all()
    del seen
    gc.collect()
    assert library.calls == before


def test_unpinnable_memory_is_plain_memory(device, library):
    library.results["cuMemHostRegister_v2"] = 801
    assert device.pinned(10).nbytes == 10 and not library.pinned


def test_best_image_for_a_generation_is_used(tmp_path):
    path = tmp_path / "kernels.bin"
    targets = ("compute_80", "sm_80", "sm_86", "sm_90a")
    path.write_bytes(archive({target: [(target.encode(), ["k"])] for target in targets}))
    found = Archive(path)
    chosen = {n: found.target(n) for n in (80, 86, 87, 89, 90, 100, 120)}
    assert chosen == {
        80: "sm_80",
        86: "sm_86",
        87: "sm_86",
        89: "sm_86",
        90: "sm_90a",
        100: "compute_80",
        120: "compute_80",
    }
    assert found.images("sm_86")[0].data() == b"sm_86"
    path.write_bytes(archive({"sm_90a": []}))
    with pytest.raises(DeviceError, match=r"no CUDA kernels for a GPU of sm_89, only for: sm_90a; build it"):
        Archive(path).target(89)


def test_memory_wrongly_reported_as_pinned_is_not_used(device, library):
    places = []

    def taken(place, n_bytes, flags):
        places.append(place)
        return 712 if len(places) < 4 else 0

    library.results["cuMemHostRegister_v2"] = taken
    seen = device.pinned(10)
    assert len(set(places)) == 4 and seen.ctypes.data == places[-1]
    library.results["cuMemHostRegister_v2"] = 712
    retained = library.calls["cuDevicePrimaryCtxRetain"] - library.calls["cuDevicePrimaryCtxRelease_v2"]
    with pytest.raises(DeviceError, match="refused a call"):
        device.pinned(10)
    assert library.calls["cuDevicePrimaryCtxRetain"] - library.calls["cuDevicePrimaryCtxRelease_v2"] == retained


def test_forked_child_makes_no_driver_call_when_dropping_inherited_objects(device, library):
    assert device._shared in fork_safety._opened
    seen, place = device.pinned(10), device.allocate(10)
    device.wait()
    device._shared.leave()
    calls = library.calls.copy()
    with pytest.raises(DeviceError, match="belongs to the parent process, which forked this one"):
        device.allocate(10)
    device.free(place)
    del seen
    gc.collect()
    device.close()
    assert library.calls == calls


def test_memory_the_driver_cannot_free_is_kept(device, library):
    library.results["cuMemHostUnregister"] = 999
    kept = len(context._kept)
    seen = device.pinned(10)
    place = seen.ctypes.data
    del seen
    gc.collect()
    assert len(context._kept) == kept + 1 and place in library.pinned


def test_images_of_one_source_are_packed_together(tmp_path):
    kinds = [(f"some {i}".encode() * (i + 1), [f"some__{i}", f"some__{i}_kept"]) for i in range(6)]
    attention = [(b"few", ["attend_few_64", "attend_few_128"]), (b"hadamard", ["attend_hadamard_64"])]
    made = [*kinds, (b"many", ["many__0"]), *attention, (b"", ["add"]), (b"rows", ["scale"])]
    assert [len(pack) for pack in packs(made)] == [6, 1, 2, 1, 1]
    assert packs([made[0], (b"none", []), *made[1:]]) == packs(made)  # one without kernels for the generation
    (tmp_path / "kernels.bin").write_bytes(archive({"sm_80": made, "sm_90a": made[4:]}))
    found = Archive(tmp_path / "kernels.bin")
    assert [(image.data(), image.kernels) for image in found.images("sm_80")] == made
    assert [(image.data(), image.kernels) for image in found.images("sm_90a")] == made[4:]


@pytest.mark.parametrize(
    "data", [b"", b"woollyk2", b"woollyk2\xff\xff\0\0{}", b"woollyk1\2\0\0\0{}", b"something else"]
)
def test_damaged_archive_is_named(data, tmp_path):
    (tmp_path / "kernels.bin").write_bytes(data)
    with pytest.raises(DeviceError, match="is damaged"):
        Archive(tmp_path / "kernels.bin")


def test_build_without_kernels_says_why(tmp_path):
    with pytest.raises(DeviceError, match="this build of Woolly has no CUDA kernels"):
        Archive(tmp_path / "none.bin")


def test_gpu_is_inspected_without_a_program(device, library, kernels, monkeypatch):
    monkeypatch.setattr(gpu_discovery, "open_driver", lambda: Driver(library))
    monkeypatch.setattr(module, "open_driver", lambda: Driver(library))
    found = gpu_discovery.find_gpu()
    assert (found.name, found.level, found.free, found.total) == ("NVIDIA Fake", "sm_90", 1 << 30, 2 << 30)
    assert found.bandwidth == pytest.approx(2 * 3.201e9 * 6144 / 8)
    before = library.calls["cuCtxSetCurrent"]
    device.memory()  # its context is not that of the thread any more
    assert library.calls["cuCtxSetCurrent"] == before + 1
    assert gpu_discovery.count_gpus() == 1
    with pytest.raises(RequestError, match=r"device is 'cuda:1', and this machine has 1 NVIDIA GPU: numbers start"):
        gpu_discovery.find_gpu(1)
    library.results["cuDevicePrimaryCtxRetain"] = 2  # other programs have all of its memory
    with pytest.raises(DeviceError, match="NVIDIA Fake is out of memory; end other programs that use it") as full:
        gpu_discovery.find_gpu()
    assert full.value.fault == "NVIDIA Fake is out of memory"
    library.n_devices = 0
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        gpu_discovery.find_gpu()
    assert gpu_discovery.count_gpus() == 0
