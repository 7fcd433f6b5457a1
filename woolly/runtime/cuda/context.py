"""The Context: what the queues of one GPU share, from the kernels that are loaded to the fault that ended it."""

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
from woolly.runtime.cuda.archive import Archive, KernelImage
from woolly.runtime.cuda.kernel_compiler import KernelCompiler, Unit
from woolly.runtime.cuda.libcuda import Driver
from woolly.runtime.forks import leave_in_children

# The oldest generation with the tensor-core instructions of the kernels.
OLDEST = 80

# Numbers of the driver's enumerations.
MAJOR, MINOR, _PROCESSORS, _SHARED_BYTES = 75, 76, 16, 97
_MEMORY_CLOCK, _MEMORY_WIDTH = 36, 37
_DYNAMIC_SHARED_BYTES, _SHARED_PERCENT = 8, 9
# Beyond 48 KB a kernel has to be asked first, and what it declares itself counts, too: so it is asked well before.
_ASKED_SHARED, _PLAIN_SHARED = 32 << 10, 48 << 10
_PAGE, _LARGE = 4096, 4 << 20
# What the driver says of memory that it believes to be pinned, and how many places are tried.
_TAKEN, _MAX_TAKEN = 712, 8

_kept: list[mmap.mmap] = []


# The number of the context that each thread used last.
_current = threading.local()
_numbers = itertools.count(1)


class _Life:
    """Whether the driver must not be asked for anything more."""

    is_over = False


class Context:
    """A GPU as one program uses it. A fault ends all that the process has on the GPU, and only its end mends that."""

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
                f"{self.name} is of generation sm_{self.architecture}, and sm_{OLDEST} or later was expected;"
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
        self.dynamic: dict[str, int] = {}  # bytes of shared memory that a kernel was granted
        self.modules: dict[KernelImage | Unit, ctypes.c_void_p] = {}
        self.allocated: dict[int, int] = {}  # bytes at each address
        self.lost: DeviceError | None = None  # why the device cannot be used again
        self._life = _Life()
        self._serial = next(_numbers)
        leave_in_children(self)

    def enter(self) -> Driver:
        """Makes the context that of the calling thread."""
        if self.lost is not None:
            # Without the traces of those who got it before: they would keep what they computed with.
            raise self.lost.with_traceback(None)
        # Not compared by its address: the context after a fault may have that of the one before.
        if getattr(_current, "serial", None) != self._serial:
            self.driver.call("cuCtxSetCurrent", self.context)
            _current.serial = self._serial
        return self.driver

    def failed(self, error: DeviceError | RequestError) -> DeviceError | RequestError:
        """Remembers a fault after which the context is of no use."""
        if isinstance(error, DeviceError) and error.code == "lost":
            self.lost = DeviceError(str(error), code="lost", remedy="start the process anew")
            self._life.is_over = True
            return self.lost
        return error

    def leave(self) -> None:
        """In a forked child: nothing of the GPU is its own, and the driver must not be asked."""
        self.lost = DeviceError("the GPU belongs to the process that this one was forked from", code="lost")
        self._life.is_over = True

    def function(self, kernel: str, shared: int) -> ctypes.c_void_p:
        """The kernel of that name, with leave to use that much dynamic shared memory."""
        found = self.functions.get(kernel) or self._load(kernel)
        if shared > self.dynamic.get(kernel, _ASKED_SHARED):
            with self.lock:
                most = max(shared, self.dynamic.get(kernel, 0))  # another thread may have been granted more
                self.driver.call("cuFuncSetAttribute", found, _DYNAMIC_SHARED_BYTES, most)
                if most > _PLAIN_SHARED:
                    # All kernels split the memory of a multiprocessor alike: only an idle one can change it.
                    self.driver.call("cuFuncSetAttribute", found, _SHARED_PERCENT, 100)
                self.dynamic[kernel] = most
        return found

    def _load(self, kernel: str) -> ctypes.c_void_p:
        image = self.kernels.find(kernel)
        if image is None:
            raise DeviceError(f"this build of Woolly has no kernel {kernel}: install it again", code="no_kernels")
        # Unpacked before the lock is taken: others go on meanwhile.
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
        """Memory of the host that copies to and from the device need no detour for. It may outlive the device.

        The process owns it and registers it with the driver, so that a reader never loses it with the device.
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
            # The driver would copy what was at that place before: it is held until there is another one.
            aside.append(memory)
        raise driver.error("cuMemHostRegister_v2", _TAKEN)

    def close(self) -> None:
        """Gives back all memory. After a fault the end of the process does: the driver would fail, or wait forever."""
        if self.lost is None:
            driver = self.enter()
            # Results do not matter here: there is nothing left to save.
            while self.allocated:  # other threads may give back memory meanwhile
                driver.result("cuMemFree_v2", self.allocated.popitem()[0])
            for module in self.modules.values():
                driver.result("cuModuleUnload", module)
            driver.result("cuDevicePrimaryCtxRelease_v2", self.number)
        self.allocated.clear()
        self.lost = self.lost or DeviceError("the program was closed", code="lost")


def _map_pages(size: int) -> mmap.mmap:
    """Pages of this process alone. A mapping is given back whole, unlike memory from a heap, and can be kept."""
    if sys.platform == "win32":  # which has no flags: a mapping without a file and without a name is nobody else's
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and size >= _LARGE:
        with suppress(OSError):  # not every system has large pages, of which fewer are pinned
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def check_number(index: int, n_devices: int) -> None:
    """RequestError if there is no GPU of that number."""
    if not 0 <= index < n_devices:
        raise RequestError(
            f"device is 'cuda:{index}', and this machine has {n_devices} NVIDIA GPU{'s' * (n_devices != 1)}:"
            " numbers count from 0",
            field="device",
        )


def forget_current() -> None:
    """Has the calling thread enter a context anew, after it used the driver without one of these."""
    _current.serial = None


def memory_bandwidth(driver: Driver, number: int) -> float | None:
    """Bytes per second of a GPU's memory, of two bits per tick and line; None if the driver does not say."""
    kilohertz, bits = driver.attribute(_MEMORY_CLOCK, number), driver.attribute(_MEMORY_WIDTH, number)
    return 2 * 1000.0 * kilohertz * bits / 8 if kilohertz > 0 and bits > 0 else None


def _unpin(life: _Life, driver: Driver, context: ctypes.c_void_p, number: int, memory: mmap.mmap) -> None:
    """Unregisters pinned memory on the thread that drops the last reference.

    If the driver refuses, the memory stays mapped, so that its address is not reused.
    """
    if life.is_over:
        _kept.append(memory)
        return
    driver.result("cuCtxSetCurrent", context)
    _current.serial = None
    if driver.result("cuMemHostUnregister", ctypes.addressof(ctypes.c_char.from_buffer(memory))):
        _kept.append(memory)
    driver.result("cuDevicePrimaryCtxRelease_v2", number)
