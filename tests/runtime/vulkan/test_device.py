"""The VulkanDevice on what is there, and its sentences if something fails."""

import gc
import os
import struct
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from woolly.errors import DeviceError, RequestError
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.memory import Block
from woolly.runtime.vulkan import device as driving
from woolly.runtime.vulkan import kernel_archive, libvulkan, physical_device
from woolly.runtime.vulkan.auto_selection import LEVEL, find_level
from woolly.runtime.vulkan.context import VulkanContext
from woolly.runtime.vulkan.device import VulkanDevice
from woolly.runtime.vulkan.kernel_archive import ARCHIVE, SpirvArchive
from woolly.runtime.vulkan.libvulkan import VulkanLibrary, open_driver
from woolly.runtime.vulkan.physical_device import FEATURES, Physical, find_physical
from woolly.runtime.vulkan.spirv import with_modes


class Failing:
    """A driver of which some functions do nothing but give a result."""

    def __init__(self, driver, codes):
        self._driver, self._codes = driver, codes

    def result(self, name, *arguments):
        return self._codes[name] if name in self._codes else self._driver.result(name, *arguments)

    def call(self, name, *arguments):
        if code := self.result(name, *arguments):
            raise self.error(name, code)

    def __getattr__(self, name):
        return getattr(self._driver, name)


def fail(device, name, code):
    # Nothing is known to be done: the work of a test may be done before the host waits for it.
    codes = {"vkGetSemaphoreCounterValue": 0, name: code}
    device._shared.driver = Failing(device._shared.driver, codes)


def test_copies_of_every_size_arrive(opened):
    for n in (1, 3, 4, 65536, 65540, (8 << 20) + 5, 20 << 20):
        data = np.random.default_rng(n).integers(0, 256, n, np.uint8)
        at, out = opened.allocate(n), np.zeros(n, np.uint8)
        opened.upload(at, data)
        data[:] = 0  # it may change after the call
        opened.download(at, out)
        opened.wait()
        np.testing.assert_array_equal(out, np.random.default_rng(n).integers(0, 256, n, np.uint8))
        opened.free(at)


def test_fills_are_queued(opened):
    at, out = opened.allocate(1000), np.ones(1000, np.uint8)
    opened.upload(at, out)
    opened.zero(at, 1000)
    opened.download(at, out)
    opened.wait()
    assert not out.any()
    opened.free(at)


def test_recorded_launches_can_be_replayed(opened):
    at = opened.allocate(4096)
    data = np.arange(512, dtype=np.uint8)
    args = (at, Address(at + 1024), 100, 5, 2, 1)
    graph = opened.capture(lambda: opened.launch("pack", (4,), 64, 0, args))
    for shift in range(2):
        opened.upload(at, np.roll(data, shift))
        opened.replay(graph)
        out = np.zeros((100, 8), np.uint8)
        opened.download(at + 1024, out)
        opened.wait()
        blocks = np.roll(data, shift)[:500].reshape(100, 5)
        np.testing.assert_array_equal(out[:, :5], np.roll(blocks, -1, axis=1))
    opened.forget(graph)
    opened.free(at)


def test_events_give_times_and_complete(opened):
    first = opened.mark()
    at = opened.allocate(1 << 20)
    opened.zero(at, 1 << 20)
    second, third = opened.mark(), opened.mark()
    opened.reach(third)
    assert opened.times([first, second])[0] >= 0
    assert opened.times([]) == []
    opened.free(at)


class Logging(Failing):
    """A driver that keeps the names of what was called, and the stages of barriers."""

    def __init__(self, driver):
        super().__init__(driver, {})
        self.names = []

    def result(self, name, *arguments):
        self.names.append((name, *arguments[1:3]) if name == "vkCmdPipelineBarrier" else name)
        return super().result(name, *arguments)


ALL, KERNELS = ("vkCmdPipelineBarrier", 0x10000, 0x10000), ("vkCmdPipelineBarrier", 0x800, 0x800)


@pytest.fixture
def calls(own, monkeypatch):
    """Names of the driver functions that `own` calls."""
    own.prepare("pack", 0)
    own.wait()
    log = Logging(own._shared.driver)
    monkeypatch.setattr(own._shared, "driver", log)
    return log.names


def test_early_launch_waits_for_a_new_struct(own, calls):
    at = own.allocate(4096)
    args = ((at, 1.0, 2), Address(at + 1024), 100, 5, 2, 1)
    for _ in range(2):
        own.launch("pack", (4,), 64, 0, args, early=True)
    names = [name for name in calls if name in (ALL, "vkCmdUpdateBuffer", "vkCmdDispatch")]
    assert names == [ALL, "vkCmdUpdateBuffer", ALL, "vkCmdDispatch", "vkCmdDispatch"]


def test_launch_after_a_copy_waits_for_everything_and_otherwise_for_kernels(own, calls):
    at = own.allocate(4096)
    args = (at, Address(at + 1024), 100, 5, 2, 1)

    def queue():
        for early in (False, False, True, False):
            own.launch("pack", (4,), 64, 0, args, early=early)

    queue()
    own.zero(at, 1024)
    own.forget(own.capture(queue))
    four = [ALL, "vkCmdDispatch", KERNELS, "vkCmdDispatch", "vkCmdDispatch", KERNELS, "vkCmdDispatch"]
    names = [name for name in calls if name in (ALL, KERNELS, "vkCmdFillBuffer", "vkCmdDispatch")]
    assert names == [*four, ALL, "vkCmdFillBuffer", *four]


def test_launches_with_the_same_arguments_share_a_struct(own, calls):
    at = own.allocate(4096)
    for number in (2.0, 2.0, 2):
        own.launch("pack", (4,), 64, 0, ((at, number), Address(at + 1024), 100, 5, 2, 1))
    assert calls.count("vkCmdUpdateBuffer") == 2  # a whole number has other bits


def test_too_many_push_constants_are_an_assertion_error(own):
    with pytest.raises(AssertionError, match="136 bytes of arguments"):
        own.launch("pack", (1,), 64, 0, (Address(0),) * 17)


def test_struct_of_a_recording_is_written_before_its_replay(own, calls):
    at = own.allocate(4096)
    args = ((at, 1.0, 2), Address(at + 1024), 100, 5, 2, 1)
    graph = own.capture(lambda: own.launch("pack", (4,), 64, 0, args, early=True))
    names = [name for name in calls if name in (ALL, "vkCmdUpdateBuffer", "vkCmdDispatch", "vkQueueSubmit")]
    assert names == [ALL, "vkCmdUpdateBuffer", "vkCmdDispatch", ALL, "vkQueueSubmit"]
    own.forget(graph)


def test_downloads_are_visible_to_the_host(own, calls):
    own.download(own.allocate(64), np.zeros(64, np.uint8))
    assert calls[calls.index("vkCmdCopyBuffer") + 1] == ("vkCmdPipelineBarrier", 0x1000, 0x4000)


@pytest.mark.parametrize("next_call", ["wait", "allocate"])
def test_dropped_memory_is_freed_by_the_stream_owner(own, calls, next_call):
    at = own.allocate(1024)
    own.zero(at, 1024)
    calls.clear()
    own.free(at)
    assert calls == []  # another thread may have dropped it
    if next_call == "wait":
        own.wait()
    else:
        assert own.allocate(1024) == at
    assert calls.index("vkQueueSubmit") < calls.index("vkDeviceWaitIdle") and not own._freed


def test_memory_is_suballocated_and_reclaimed():
    block = Block(None, None, 0, 1024, 0)
    places = [block.take(256) for _ in range(4)]
    assert places == [0, 256, 512, 768] and block.take(256) is None
    for place in (256, 768, 512):
        block.give_back(place, 256)
    assert block.take(512) == 256 and not block.is_empty
    block.give_back(0, 256)
    block.give_back(256, 512)
    assert block.is_empty


def test_too_large_allocation_is_rejected_with_the_numbers(own):
    fail(own, "vkAllocateMemory", -2)
    own._shared.memory._driver = own._shared.driver
    with pytest.raises(RequestError, match=r"GB free of .* GB, and 3\.0 GB more are needed"):
        own.allocate(3_000_000_000)


class Counting(Failing):
    """A driver that knows what was made and not given back, and whose n-th making fails."""

    def __init__(self, driver, fails):
        super().__init__(driver, {})
        self.fails, self.n_made, self.alive = fails, 0, 0

    def result(self, name, *arguments):
        makes = name.startswith("vkCreate") or name in ("vkAllocateMemory", "vkBindBufferMemory", "vkMapMemory")
        self.n_made += makes
        if makes and self.n_made == self.fails:
            return -2
        if name.startswith("vkDestroy") or name == "vkFreeMemory":
            self.alive -= bool(arguments[0 if name == "vkDestroyDevice" else 1])
        code = super().result(name, *arguments)
        self.alive += (name.startswith("vkCreate") or name == "vkAllocateMemory") and code == 0
        return code


def test_archive_is_read_once_for_all_devices(opened, monkeypatch):
    kernel_archive._read.cache_clear()
    read = []
    monkeypatch.setattr(kernel_archive, "SpirvArchive", lambda path: read.append(path) or SpirvArchive(path))
    with suppress(DeviceError):  # the CPU in place of a GPU
        find_level()
    driving.open_device().close()
    assert read == [ARCHIVE]
    kernel_archive._read.cache_clear()


@pytest.mark.parametrize("name", ["vkQueueSubmit", "vkWaitSemaphores"])
def test_lost_device_repeats_its_error(own, name):
    fail(own, name, -4)
    for _ in range(2):
        with pytest.raises(DeviceError, match="the GPU was lost in vk") as caught:
            own.mark()
            own.wait()
        assert caught.value.code == "lost"


def test_hanging_work_is_abandoned(own):
    fail(own, "vkWaitSemaphores", libvulkan.TIMEOUT)
    own.mark()
    with pytest.raises(DeviceError, match="did not finish its work within 120 seconds"):
        own.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_leaves_the_gpu_alone(own):
    if (child := os.fork()) == 0:  # pragma: no cover - in the child
        try:
            own.allocate(1)
        except DeviceError as error:
            os._exit(0 if "forked this one" in str(error) and gc.isenabled() else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_child_gets_an_error_about_its_parents_vulkan(monkeypatch):
    monkeypatch.setattr(libvulkan, "_opened", lambda: (os.getpid() + 1, None))
    with pytest.raises(DeviceError, match="by the parent process, which forked this one; start processes with spawn"):
        open_driver()


def test_invalid_gpu_number_is_rejected(opened):
    with pytest.raises(RequestError, match=r"device is 'vulkan:99', and Vulkan has \d+ GPU"):
        driving.open_device(99)


def test_missing_features_are_named():
    gpu = Physical(
        None,
        0,
        "Old GPU",
        "discrete",
        "",
        frozenset(FEATURES) - {"shaderInt8"},
        frozenset(),
        0,
        False,
        1.0,
        64,
        1,
        None,
    )
    with pytest.raises(DeviceError, match="Old GPU or its driver lacks shaderInt8"):
        gpu.check()
    with pytest.raises(DeviceError, match="lacks a queue that computes"):
        replace(gpu, features=frozenset(FEATURES), family=-1).check()
    with pytest.raises(DeviceError, match=r"Old GPU has Vulkan 1\.1, and 1\.2 is needed: a newer driver may have it"):
        replace(gpu, features=frozenset(), api=1 << 22 | 1 << 12).check()
    # Dots are an extension of Vulkan 1.2, and a part of 1.3.
    assert replace(gpu, api=1 << 22 | 2 << 12).extensions == [b"VK_KHR_shader_integer_dot_product"]
    assert replace(gpu, api=1 << 22 | 3 << 12, has_budget=True).extensions == [b"VK_EXT_memory_budget"]


def test_cpu_driver_is_used_only_by_name(opened, monkeypatch):
    found = find_physical(open_driver(), 0)
    for kind, sentence in (("software", "only the CPU driver"), ("integrated", "is taken by name alone")):
        monkeypatch.setattr(physical_device, "find_physical", lambda *_, kind=kind: replace(found, kind=kind))
        with pytest.raises(DeviceError, match=sentence):
            find_level()
    monkeypatch.setattr(physical_device, "find_physical", lambda *_: replace(found, kind="discrete"))
    assert find_level() == LEVEL


def test_missing_vulkan_library_gives_a_one_line_error(monkeypatch):
    monkeypatch.setattr(libvulkan, "_NAMES", {"linux": ("libnothing.so.9",)})
    monkeypatch.delenv("WOOLLY_VULKAN_DRIVER", raising=False)
    with pytest.raises(DeviceError, match="there is no Vulkan here: install the GPU's driver and libvulkan1"):
        libvulkan._start()
    monkeypatch.setenv("WOOLLY_VULKAN_DRIVER", "libnothing.so.9")
    with pytest.raises(DeviceError, match=r"libnothing.so.9 is not a Vulkan library \(WOOLLY_VULKAN_DRIVER\)"):
        libvulkan._start()


@pytest.mark.parametrize(
    ("code", "sentence"), [(-3, "vkCreateDevice failed: the driver could not start"), (-99, "result -99")]
)
def test_driver_results_have_messages(code, sentence):
    assert sentence in str(VulkanLibrary.error(None, "vkCreateDevice", code))


def test_kernels_request_the_float_features_of_the_gpu():
    head, entry = (0x07230203, 0x10500, 0, 9, 0), (5 << 16 | 15, 5, 4, 0, 0)
    rest = (3 << 16 | 16, 4, 17, 4 << 16 | 19, 0, 0, 0)
    code = struct.pack("<19I", *head, 2 << 16 | 17, 1, *entry, *rest)
    words = struct.unpack("<25I", with_modes(code, frozenset({"shaderDenormPreserveFloat32"})))
    assert words[5:9] == (2 << 16 | 17, 4464, 2 << 16 | 17, 1)
    assert words[14:18] == (4 << 16 | 16, 4, 4459, 32)
    assert with_modes(code, frozenset()) == code


def test_kernel_missing_from_the_archive_is_named(opened):
    with pytest.raises(DeviceError, match="this build of Woolly has no kernel nothing"):
        opened.launch("nothing", (1,), 1, 0, ())


def test_compiled_kernels_are_cached_for_the_next_process(opened, monkeypatch, tmp_path):
    monkeypatch.setenv("WOOLLY_HOME", str(tmp_path))
    device = VulkanDevice(VulkanContext(open_driver(), opened._shared.physical, SpirvArchive()), 120.0)
    device._shared.variant = opened._shared.variant
    device.prepare("pack", 0)
    device.close()
    kept = list((tmp_path / "pipelines").glob("*.bin"))
    assert len(kept) == 1 and kept[0].stat().st_size > 0
    assert ARCHIVE.exists()
