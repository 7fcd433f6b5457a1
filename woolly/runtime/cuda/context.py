"""Context: state shared by the streams of one GPU, such as loaded kernels, allocations and a fatal error."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
import threading
import weakref
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, RequestError
from woolly.runtime.cuda.kernel_archive import Archive, KernelImage
from woolly.runtime.cuda.kernel_compiler import KernelCompiler, Unit
from woolly.runtime.cuda.libcuda import Driver
from woolly.runtime.fork_safety import release_in_children

# The oldest compute capability with the tensor-core instructions of the kernels.
OLDEST = 80

# Values of the driver's enums.
MAJOR, MINOR, _PROCESSORS, _SHARED_BYTES = 75, 76, 16, 97
_MEMORY_CLOCK, _MEMORY_WIDTH = 36, 37
_DYNAMIC_SHARED_BYTES, _SHARED_PERCENT = 8, 9
# Above 48 KB of shared memory, static memory included, a kernel must opt in; opting in from 32 KB leaves a margin.
_ASKED_SHARED, _PLAIN_SHARED = 32 << 10, 48 << 10
_PAGE, _LARGE = 4096, 4 << 20
# CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, and the maximum number of addresses to try.
_TAKEN, _MAX_TAKEN = 712, 8

_kept: list[mmap.mmap] = []


# Number of the context that each thread used last.
_current = threading.local()
_numbers = itertools.count(1)


class _Life:
    """Flag set when the driver must not be called any more."""

    is_over = False


class Context:
    """Primary context of one GPU. After a fatal error, the process must restart before it can use the GPU again."""

    def __init__(self, driver: Driver, index: int, archive: Archive | KernelCompiler) -> None:
        self.driver = driver
        check_number(index, driver.n_devices())
        number = ctypes.c_int()
        driver.call("cuDeviceGet", ctypes.byref(number), index)
        self.number = number.value
        self.name = driver.device_name(self.number)
        self.architecture = 10 * driver.attribute(MAJOR, self.number) + driver.attribute(MINOR, self.number)
        if self.architecture < OLDEST:
            raise DeviceError(
                f"{self.name} has compute capability sm_{self.architecture}, but sm_{OLDEST} or later is needed;"
                " use backend='cpu'",
                code="old_device",
            )
        self.n_processors = driver.attribute(_PROCESSORS, self.number)
        self.shared_bytes = driver.attribute(_SHARED_BYTES, self.number)
        self.bandwidth = memory_bandwidth(driver, self.number)
        target = archive.target(self.architecture, driver.version)
        self.kernels = archive.kernels_of(target)
        self.kernels_for = int(target.partition("_")[2].rstrip("a"))
        self.context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.number)
        self.lock = threading.Lock()
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.dynamic: dict[str, int] = {}  # maximum dynamic shared memory of each kernel, in bytes
        self.modules: dict[KernelImage | Unit, ctypes.c_void_p] = {}
        self.allocated: dict[int, int] = {}  # bytes at each address
        self.lost: DeviceError | None = None  # why the device cannot be used again
        self._life = _Life()
        self._serial = next(_numbers)
        release_in_children(self)

    def enter(self) -> Driver:
        """Make the context current on the calling thread."""
        if self.lost is not None:
            # Without earlier tracebacks: they would keep the caller's arrays alive.
            raise self.lost.with_traceback(None)
        # Not compared by address: the context after a fault may reuse it.
        if getattr(_current, "serial", None) != self._serial:
            self.driver.call("cuCtxSetCurrent", self.context)
            _current.serial = self._serial
        return self.driver

    def failed(self, error: DeviceError | RequestError) -> DeviceError | RequestError:
        """Record an error that makes the context unusable, and return the error to raise."""
        if isinstance(error, DeviceError) and error.code == "lost":
            self.lost = DeviceError(str(error), code="lost", remedy="restart the process")
            self._life.is_over = True
            return self.lost
        return error

    def leave(self) -> None:
        """Mark the context as lost in a forked child, which must not call the driver."""
        self.lost = DeviceError("the GPU belongs to the parent process, which forked this one", code="lost")
        self._life.is_over = True

    def function(self, kernel: str, shared: int) -> ctypes.c_void_p:
        """Return the kernel of that name, with at least `shared` bytes of dynamic shared memory allowed."""
        found = self.functions.get(kernel) or self._load(kernel)
        if shared > self.dynamic.get(kernel, _ASKED_SHARED):
            with self.lock:
                most = max(shared, self.dynamic.get(kernel, 0))  # another thread may have raised it
                self.driver.call("cuFuncSetAttribute", found, _DYNAMIC_SHARED_BYTES, most)
                if most > _PLAIN_SHARED:
                    # The same carveout for all kernels: changing it requires an idle multiprocessor.
                    self.driver.call("cuFuncSetAttribute", found, _SHARED_PERCENT, 100)
                self.dynamic[kernel] = most
        return found

    def _load(self, kernel: str) -> ctypes.c_void_p:
        image = self.kernels.find(kernel)
        if image is None:
            raise DeviceError(f"this build of Woolly has no kernel {kernel}: install it again", code="no_kernels")
        # Decompressed outside the lock.
        data = b"" if image in self.modules else image.data()
        with self.lock:
            if image not in self.modules:
                module = ctypes.c_void_p()
                self.driver.call("cuModuleLoadData", ctypes.byref(module), data)
                self.modules[image] = module
            function = ctypes.c_void_p()
            self.driver.call("cuModuleGetFunction", ctypes.byref(function), self.modules[image], kernel.encode())
            self.functions[kernel] = function
            return function

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocate pinned host memory. It may outlive the device.

        The process owns the memory and only registers it with the driver, so readers may outlive the device.
        """
        size, driver, aside = _PAGE * -(-max(n_bytes, 1) // _PAGE), self.enter(), []
        for _ in range(_MAX_TAKEN):
            memory = _map_pages(size)
            pages = np.frombuffer(memory, np.uint8)
            # The registration lasts as long as the context.
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), self.number)
            result = driver.result("cuMemHostRegister_v2", pages.ctypes.data, size, 0)
            if result == 0:
                end = weakref.finalize(pages, _unpin, self._life, driver, self.context, self.number, memory)
                end.atexit = False
                return pages[:n_bytes]
            driver.result("cuDevicePrimaryCtxRelease_v2", self.number)
            if result != _TAKEN:
                return pages[:n_bytes]
            # The driver has a stale registration of this address: keep the mapping until another address is found.
            aside.append(memory)
        raise driver.error("cuMemHostRegister_v2", _TAKEN)

    def close(self) -> None:
        """Free all memory. After a fatal error, leave that to the exit of the process: the driver could hang."""
        if self.lost is None:
            driver = self.enter()
            # Errors are ignored during cleanup.
            while self.allocated:  # other threads may free memory meanwhile
                driver.result("cuMemFree_v2", self.allocated.popitem()[0])
            for module in self.modules.values():
                driver.result("cuModuleUnload", module)
            driver.result("cuDevicePrimaryCtxRelease_v2", self.number)
        self.allocated.clear()
        self.lost = self.lost or DeviceError("the program was closed", code="lost")


def _map_pages(size: int) -> mmap.mmap:
    """Map private anonymous pages: unlike heap memory, a mapping is released as a unit and can be kept."""
    if sys.platform == "win32":  # no flags on Windows: an unnamed mapping without a file is private
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and size >= _LARGE:
        with suppress(OSError):  # huge pages, if available, mean fewer pages to pin
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def check_number(index: int, n_devices: int) -> None:
    """Raise RequestError if there is no GPU with that number."""
    if not 0 <= index < n_devices:
        raise RequestError(
            f"device is 'cuda:{index}', and this machine has {n_devices} NVIDIA GPU{'s' * (n_devices != 1)}:"
            " numbers start at 0",
            field="device",
        )


def forget_current() -> None:
    """Invalidate the thread's current context after direct driver calls."""
    _current.serial = None


def memory_bandwidth(driver: Driver, number: int) -> float | None:
    """Return the memory bandwidth in bytes per second, at two transfers per clock, or None if unknown."""
    kilohertz, bits = driver.attribute(_MEMORY_CLOCK, number), driver.attribute(_MEMORY_WIDTH, number)
    return 2 * 1000.0 * kilohertz * bits / 8 if kilohertz > 0 and bits > 0 else None


def _unpin(life: _Life, driver: Driver, context: ctypes.c_void_p, number: int, memory: mmap.mmap) -> None:
    """Unregister pinned memory, on the thread that drops the last reference.

    If that fails, the memory stays mapped, so that its address is not reused.
    """
    if life.is_over:
        _kept.append(memory)
        return
    driver.result("cuCtxSetCurrent", context)
    _current.serial = None
    if driver.result("cuMemHostUnregister", ctypes.addressof(ctypes.c_char.from_buffer(memory))):
        _kept.append(memory)
    driver.result("cuDevicePrimaryCtxRelease_v2", number)
