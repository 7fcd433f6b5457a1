"""MetalContext: state shared by the streams of a GPU, such as the queue, memory, pipelines and device loss."""

from __future__ import annotations

import ctypes as c
import re
import threading
from dataclasses import dataclass

from woolly.errors import DeviceError
from woolly.runtime.fork_safety import release_in_children
from woolly.runtime.metal.libobjc import ObjectiveC
from woolly.runtime.metal.memory import MetalMemory
from woolly.runtime.vulkan.kernel_archive import SpirvArchive

_LANGUAGE = 3 << 16  # Metal 3.0 (macOS 13), the first with buffer addresses
_SAFE = 0  # MTLMathMode: no reordering, fusing or finite-math assumptions
_PRECISE = 1  # MTLMathFloatingPointFunctions
_APPLE = 1007  # MTLGPUFamilyApple7: M1
_ENTRY = "main_0"
_THREADS = re.compile(rb"max_total_threads_per_threadgroup\((\d+)\)")


@dataclass(frozen=True)
class Pipeline:
    """A compiled kernel."""

    state: int
    threads: int  # threads per threadgroup


class MetalContext:
    """A GPU opened by a program."""

    def __init__(self, driver: ObjectiveC, device: int, archive: SpirvArchive) -> None:
        self.driver, self.device, self._archive = driver, device, archive
        self.lost: DeviceError | None = None  # error that made the device unusable
        self.flushes = False  # whether subnormals are flushed to zero, set by the probe
        self.bandwidth: float | None = None  # bytes per second, once measured
        self.knows_bandwidth = False
        self.lock = threading.RLock()  # guards the queue, the memory and the pipelines
        self.name = name_of(driver, device)
        self.memory = MetalMemory(driver, device)
        self._pipelines: dict[str, Pipeline] = {}
        self.queue = self._last = 0  # `_last`: the last committed command buffer
        try:
            self._check()
            self.queue = driver.send(device, "newCommandQueue")
            if not self.queue:
                raise DeviceError(f"{self.name} provides no command queue", code="driver")
        except BaseException:
            self.close()  # the context owns the device from the start
            raise
        release_in_children(self)

    def _check(self) -> None:
        if not self.driver.send(self.device, "supportsFamily:", c.c_int64(_APPLE), result=c.c_bool):
            text = f"{self.name} is no GPU of Apple's chips from M1 on, which the metal backend is for"
            raise DeviceError(text, code="old_device", remedy="use backend='cpu'")
        major = int(self.driver.version.partition(".")[0] or 0)
        if major < 13:
            text = f"macOS {self.driver.version} is too old for the metal backend: 13 or later has what it needs"
            raise DeviceError(text, code="old_driver", remedy="use backend='cpu'")

    def enter(self) -> ObjectiveC:
        """Return the driver. Raises DeviceError if the device is lost."""
        if self.lost is not None:
            # Without earlier tracebacks, which would keep their frames' arrays alive.
            raise self.lost.with_traceback(None)
        return self.driver

    def fail(self, text: str) -> DeviceError:
        """Mark the device as lost, and return the error to raise."""
        self.lost = self.lost or DeviceError(text, code="lost", remedy="restart the process")
        return self.lost

    def leave(self) -> None:
        """Disable the context in a forked child, which must not call the driver."""
        self.lost = DeviceError("the GPU belongs to the parent process, which forked this one", code="lost")

    def commit(self, commands: int) -> None:
        """Commit a command buffer. The queue executes them in this order."""
        with self.lock:
            self.enter().send(commands, "retain")
            old, self._last = self._last, commands
            self.driver.send(commands, "commit", result=None)
        if old:
            self.driver.send(old, "release", result=None)

    def idle(self) -> None:
        """Block until all committed work is done."""
        if self._last:
            with self.enter().pool():
                self.driver.send(self._last, "waitUntilCompleted", result=None)

    def pipeline(self, kernel: str) -> Pipeline:
        """Return the pipeline of a kernel, compiled by the driver on first use and cached by macOS."""
        found = self._pipelines.get(kernel)
        if found is None:
            code = self._archive.kernel("metal", kernel)
            threads = _THREADS.search(code)
            assert threads is not None
            # Compile without the lock: it takes milliseconds, and several threads may do it concurrently.
            made = Pipeline(self._compile(kernel, code.decode()), int(threads[1]))
            with self.lock:
                found = self._pipelines.setdefault(kernel, made)
            if found is not made:  # another thread was faster
                self.driver.send(made.state, "release", result=None)
        return found

    def _compile(self, kernel: str, text: str) -> int:
        driver = self.enter()
        with driver.pool():
            options = driver.send(driver.send(driver.find_class("MTLCompileOptions"), "alloc"), "init")
            driver.send(options, "setLanguageVersion:", c.c_uint64(_LANGUAGE), result=None)
            self._forbid_fast_math(options)
            arguments = c.c_void_p(driver.string(text)), c.c_void_p(options)
            library, failed = driver.attempt(self.device, "newLibraryWithSource:options:error:", *arguments)
            driver.send(options, "release", result=None)
            if not library:
                raise self._refused(kernel, failed)
            function = driver.send(library, "newFunctionWithName:", c.c_void_p(driver.string(_ENTRY)))
            driver.send(library, "release", result=None)
            made, failed = driver.attempt(
                self.device, "newComputePipelineStateWithFunction:error:", c.c_void_p(function)
            )
            driver.send(function, "release", result=None)
            if not made:
                raise self._refused(kernel, failed)
            return made

    def _forbid_fast_math(self, options: int) -> None:
        """Disable fast math: a mode and precise functions on newer systems, a single switch on older ones."""
        selector, functions = "setMathMode:", "setMathFloatingPointFunctions:"
        if self.driver.responds(options, selector):
            self.driver.send(options, selector, c.c_int64(_SAFE), result=None)
            if self.driver.responds(options, functions):
                self.driver.send(options, functions, c.c_int64(_PRECISE), result=None)
        else:
            self.driver.send(options, "setFastMathEnabled:", c.c_bool(False), result=None)

    def _refused(self, kernel: str, text: str) -> DeviceError:
        reason = " ".join(text.split())[:300]
        return DeviceError(f"the driver of {self.name} does not compile the kernel {kernel}: {reason}", code="driver")

    def close(self, is_lost: bool = False) -> None:
        """Free everything. After device loss, do so only with `is_lost`. Otherwise wait for the exit of the process."""
        if self.lost is None or is_lost:
            if self.lost is None:
                self.idle()
            for pipeline in self._pipelines.values():
                self.driver.send(pipeline.state, "release", result=None)
            self.memory.close()
            for one in (self._last, self.queue, self.device):
                if one:
                    self.driver.send(one, "release", result=None)
        self._pipelines.clear()
        self.lost = self.lost or DeviceError("the program was closed", code="lost")


def name_of(driver: ObjectiveC, device: int) -> str:
    """Return the product name of a GPU."""
    with driver.pool():
        return driver.text(driver.send(device, "name"))
