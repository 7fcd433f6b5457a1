"""VulkanContext: state shared by the queues of a GPU, such as the logical device, memory, pipelines and device loss."""

from __future__ import annotations

import ctypes as c
import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from woolly.errors import DeviceError, RequestError, StoreError
from woolly.runtime.fork_safety import release_in_children
from woolly.runtime.gpu.arguments import MAX_PUSH_BYTES
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.kernel_archive import SpirvArchive
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.memory import Memory
from woolly.runtime.vulkan.physical_device import FEATURES, Physical, features_chain
from woolly.runtime.vulkan.spirv import with_modes
from woolly.runtime.vulkan.structs import (
    CacheInfo,
    DeviceInfo,
    LayoutInfo,
    ModuleInfo,
    PipelineInfo,
    PushRange,
    QueueInfo,
    StageInfo,
    constants,
    reference,
)
from woolly.store.model_folder import models_folder

COMPUTE = 0x20  # shader stage


class VulkanContext:
    """A GPU opened by a program."""

    def __init__(self, driver: VulkanLibrary, physical: Physical, archive: SpirvArchive) -> None:
        self.driver, self.physical, self._archive = driver, physical, archive
        self.variant = "plain"  # kernel variant, set by the probe
        self.converts_halves = False  # whether the driver converts f16 exactly, set by the probe
        self.has_matrices = False  # usable matrix units, set after the probe
        self.bandwidth: float | None = None  # bytes per second, once measured
        self.knows_bandwidth = False
        self.lost: DeviceError | None = None  # error that made the device unusable
        self.hangs = False  # whether work timed out: then nothing can be freed
        self.lock = threading.RLock()  # guards the queue, the memory and the pipelines
        self.device, self.queue = c.c_void_p(), c.c_void_p()
        self._pipelines: dict[tuple[str, bool, str], Any] = {}
        optional = ("shaderFloat64", *(cooperative_matrix.FEATURES if physical.has_matrices else ()))
        wanted = frozenset(name for name in (*FEATURES, *optional) if name in physical.features)
        chain = features_chain(wanted)
        one = c.c_float(1.0)
        queue = QueueInfo(0, physical.family, 1, reference(one))
        words = physical.extensions
        names = (c.c_char_p * max(1, len(words)))(*words)
        info = DeviceInfo(
            0, 1, reference(queue), 0, None, len(words), c.cast(names, c.c_void_p), None, next=reference(chain[0])
        )
        driver.call("vkCreateDevice", physical.handle, c.byref(info), None, c.byref(self.device))
        driver.result("vkGetDeviceQueue", self.device, physical.family, 0, c.byref(self.queue))
        self.memory = Memory(driver, physical, self.device)
        self.layout, self._cache = c.c_void_p(), c.c_void_p()
        push = PushRange(COMPUTE, 0, MAX_PUSH_BYTES)
        made = LayoutInfo(0, 0, None, 1, reference(push))
        try:
            self.call("vkCreatePipelineLayout", self.device, c.byref(made), None, c.byref(self.layout))
            self._open_cache()
        except BaseException:
            self.close()
            raise
        release_in_children(self)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the driver. Raise an error on failure, and record device loss."""
        self.enter()
        if code := self.driver.result(name, *arguments):
            raise self.failed(self.driver.error(name, code))

    def enter(self) -> VulkanLibrary:
        """Return the driver. Raises DeviceError if the device is lost."""
        if self.lost is not None:
            # Without earlier tracebacks, which would keep their frames' arrays alive.
            raise self.lost.with_traceback(None)
        return self.driver

    def idle(self) -> None:
        """Block until all queues are idle."""
        self.call("vkDeviceWaitIdle", self.device)

    def failed(self, error: DeviceError | RequestError) -> DeviceError | RequestError:
        """Record device loss, and return the error to raise."""
        if isinstance(error, DeviceError) and error.code == "lost":
            self.lost = DeviceError(str(error), code="lost", remedy="restart the process")
            return self.lost
        return error

    def leave(self) -> None:
        """Disable the context in a forked child, which must not call the driver."""
        self.lost = DeviceError("the GPU belongs to the parent process, which forked this one", code="lost")

    def pipeline(self, kernel: str) -> Any:
        """Return the pipeline of a kernel, compiled by the driver on first use."""
        key = self.variant, self.converts_halves, kernel
        found = self._pipelines.get(key)
        if found is not None:
            return found
        code = with_modes(self._archive.kernel(self.variant, kernel), self.physical.controls)
        text = c.create_string_buffer(code, len(code))
        module, made = c.c_void_p(), c.c_void_p()
        info = ModuleInfo(0, len(code), c.cast(text, c.c_void_p))
        self.call("vkCreateShaderModule", self.device, c.byref(info), None, c.byref(module))
        try:
            special = constants(int(self.converts_halves))
            wanted = PipelineInfo(0, StageInfo(0, COMPUTE, module, b"main", reference(special)), self.layout, None, -1)
            arguments = (self._cache, 1, c.byref(wanted), None, c.byref(made))
            # Compile without the lock: it takes milliseconds, and several threads may do it concurrently.
            self.call("vkCreateComputePipelines", self.device, *arguments)
        finally:
            self.driver.result("vkDestroyShaderModule", self.device, module, None)
        with self.lock:
            if key in self._pipelines:  # another thread was faster
                self.driver.result("vkDestroyPipeline", self.device, made, None)
            return self._pipelines.setdefault(key, made)

    def _cache_path(self) -> Path:
        mark = hashlib.sha256(f"{self.physical.identity} {self._archive.digest}".encode()).hexdigest()[:24]
        return models_folder().parent / "pipelines" / f"{mark}.bin"

    def _open_cache(self) -> None:
        data = b""
        with suppress(OSError, StoreError):
            data = self._cache_path().read_bytes()
        text = c.create_string_buffer(data, max(1, len(data)))
        info = CacheInfo(0, len(data), c.cast(text, c.c_void_p))
        # The driver ignores caches of other drivers.
        self.call("vkCreatePipelineCache", self.device, c.byref(info), None, c.byref(self._cache))
        self._cached_bytes = len(data)

    def _keep_cache(self) -> None:
        """Save the pipeline cache for the next process."""
        if not self._cache:
            return
        n = c.c_size_t()
        if self.driver.result("vkGetPipelineCacheData", self.device, self._cache, c.byref(n), None):
            return
        if n.value == self._cached_bytes:
            return
        data = c.create_string_buffer(n.value)
        if self.driver.result("vkGetPipelineCacheData", self.device, self._cache, c.byref(n), data):
            return
        with suppress(OSError, StoreError):
            path = self._cache_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(data.raw[: n.value])
            part.replace(path)

    def close(self, is_lost: bool = False) -> None:
        """Free everything. After device loss, do so only with `is_lost`. Otherwise wait for the exit of the process."""
        if self.lost is None or is_lost:
            driver = self.driver
            # Errors are ignored during cleanup.
            driver.result("vkDeviceWaitIdle", self.device)
            if self.lost is None:
                self._keep_cache()
            for pipeline in self._pipelines.values():
                driver.result("vkDestroyPipeline", self.device, pipeline, None)
            self.memory.close()
            driver.result("vkDestroyPipelineCache", self.device, self._cache, None)
            driver.result("vkDestroyPipelineLayout", self.device, self.layout, None)
            driver.result("vkDestroyDevice", self.device, None)
        self._pipelines.clear()
        self.lost = self.lost or DeviceError("the program was closed", code="lost")
