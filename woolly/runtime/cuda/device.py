"""CudaDevice: memory, copies, launches and graphs of one NVIDIA GPU."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.errors import DeviceError, RequestError
from woolly.runtime.cuda.context import MAJOR, MINOR, OLDEST, Context, check_number
from woolly.runtime.cuda.kernel_archive import Archive
from woolly.runtime.cuda.kernel_compiler import KernelCompiler
from woolly.runtime.cuda.libcuda import EARLY, NOT_READY, Driver, LaunchConfig, open_driver
from woolly.runtime.gpu.device import Address, Argument, too_large
from woolly.runtime.gpu.kernels import Kernels

# First architecture with programmatic dependent launch.
_EARLY = 90

# Values of the driver's enums.
_NON_BLOCKING = 1
_NO_TIMING = 2
_RELAXED = 2

# Double buffering of uploads: one buffer is copied while the other is filled.
_STAGE = 16 << 20
# A run ends within milliseconds, so polling first is cheaper than a sleep of 50 microseconds.
_SPIN_S = 0.005
_SLEEP_S = 0.0001


def _value_of(one: Argument) -> Any:
    """Convert a kernel argument to its ctypes value."""
    assert not isinstance(one, tuple), "kernels of CUDA take no structs"
    if isinstance(one, Address):
        return ctypes.c_uint64(one)
    return ctypes.c_float(one) if isinstance(one, float) else ctypes.c_int32(one)


class CudaDevice:
    """One GPU and a stream of work on it."""

    def __init__(self, shared: Context, limit_s: float, is_first: bool = True) -> None:
        self._shared = shared
        self._limit_s = limit_s
        self._is_first = is_first
        self._numbers = itertools.count(1)
        self._graphs: dict[int, ctypes.c_void_p] = {}
        self._groups: dict[tuple[str, int, int], int] = {}
        self._marks: dict[int, ctypes.c_void_p] = {}
        self._spare: list[ctypes.c_void_p] = []  # free events, for reuse
        self._packed: dict[int, tuple[Sequence[Argument], Any, Any]] = {}  # arguments by the id of their tuple
        self._stages: list[tuple[npt.NDArray[np.uint8], ctypes.c_void_p]] = []
        self._next = 0
        self._stream, self._done = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
            self._done = self._event(_NO_TIMING)
        except BaseException:
            self._end()
            raise

    @property
    def name(self) -> str:
        """Product name of the GPU."""
        return self._shared.name

    @property
    def architecture(self) -> int:
        """Compute capability, such as 90 for sm_90."""
        return self._shared.architecture

    @property
    def level(self) -> str:
        """Compute capability as text, such as "sm_90"."""
        return f"sm_{self.architecture}"

    @property
    def driver(self) -> str:
        """CUDA version of the driver."""
        version = self._shared.enter().version
        return f"CUDA {version // 1000}.{version % 1000 // 10}"

    @property
    def kernels(self) -> Kernels:
        """Emitters of the kernels of native/cuda."""
        from woolly.runtime.cuda.ops import KERNELS  # takes 30 ms, only with a GPU

        return KERNELS

    @property
    def kernels_for(self) -> int:
        """Compute capability that the kernels are compiled for: the GPU's or an earlier one."""
        return self._shared.kernels_for

    @property
    def n_processors(self) -> int:
        """Number of multiprocessors."""
        return self._shared.n_processors

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory of a block, in bytes."""
        return self._shared.shared_bytes

    @property
    def bandwidth(self) -> float | None:
        """Peak memory bandwidth in bytes per second, or None if the driver does not report it."""
        return self._shared.bandwidth

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, n_bytes: int) -> Address:
        """Allocate memory. Raises RequestError with the sizes if there is not enough."""
        place = ctypes.c_uint64()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(place), max(n_bytes, 1))
        except RequestError as error:
            raise too_large(self, n_bytes, error.code) from None
        self._shared.allocated[place.value] = n_bytes
        return Address(place.value)

    def free(self, address: Address) -> None:
        """Free memory. The driver waits for pending work that uses it."""
        if self._shared.allocated.pop(int(address), None) is not None and self._shared.lost is None:
            self._call("cuMemFree_v2", int(address))

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocate pinned host memory. It may outlive the device."""
        return self._shared.pinned(n_bytes)

    def upload(self, address: Address, data: npt.NDArray[Any]) -> None:
        """Queue the copy of an array to the device, in pieces through pinned buffers."""
        source = data.reshape(-1).view(np.uint8)
        if not self._stages:
            self._stages = [(self.pinned(_STAGE), self._event(_NO_TIMING)) for _ in range(2)]
        for at in range(0, len(source), _STAGE):
            piece = source[at : at + _STAGE]
            stage, sent = self._stages[self._next]
            self._next = 1 - self._next
            self._await(sent, 0.0)  # other threads copy meanwhile
            np.copyto(stage[: len(piece)], piece)
            self._call("cuMemcpyHtoDAsync_v2", int(address) + at, stage.ctypes.data, len(piece), self._stream)
            self._call("cuEventRecord", sent, self._stream)

    def send(self, address: Address, pinned: npt.NDArray[np.uint8]) -> None:
        """Queue the copy of pinned memory to the device."""
        self._call("cuMemcpyHtoDAsync_v2", int(address), pinned.ctypes.data, pinned.nbytes, self._stream)

    def download(self, address: Address, out: npt.NDArray[Any]) -> None:
        """Queue the copy from the device into an array, which is fastest if pinned."""
        self._call("cuMemcpyDtoHAsync_v2", out.ctypes.data, int(address), out.nbytes, self._stream)

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queue a memset to zero."""
        self._call("cuMemsetD8Async", int(address), 0, n_bytes, self._stream)

    def precompile(self, kernels: Iterable[str]) -> None:
        """Compile these kernels now, if this build uses JIT compilation."""
        self._shared.kernels.precompile(kernels)

    def prepare(self, kernel: str, shared: int) -> None:
        """Load a kernel."""
        self._shared.enter()
        self._shared.function(kernel, shared)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: int,
        shared: int,
        args: Sequence[Argument],
        early: bool = False,
        group: int = 1,
    ) -> None:
        """Queue a kernel, with `early` as a programmatic dependent launch if the architecture supports it."""
        self._shared.enter()
        try:
            function = self._shared.function(kernel, shared)
        except (DeviceError, RequestError) as error:
            raise self._shared.failed(error) from None
        x, y, z = (*grid, 1, 1)[:3]
        if group > 1:
            x = min(x, group * self._n_groups(kernel, function, group, block, shared))
        pointers = self._pointers(args)
        # Kernels for earlier architectures have no griddepcontrol.wait.
        if early and self.kernels_for >= _EARLY:
            config = LaunchConfig(x, y, z, block, 1, 1, shared, self._stream, ctypes.pointer(EARLY), 1)
            self._call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
            return
        self._call("cuLaunchKernel", function, x, y, z, block, 1, 1, shared, self._stream, pointers, None)

    def _n_groups(self, kernel: str, function: ctypes.c_void_p, group: int, block: int, shared: int) -> int:
        """Return the maximum number of resident clusters of a kernel, cached. The kernel declares the cluster size."""
        key = kernel, block, shared
        if key not in self._groups:
            count, config = ctypes.c_int(), LaunchConfig(group, 1, 1, block, 1, 1, shared, self._stream, None, 0)
            self._call("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(config))
            self._groups[key] = max(count.value, 1)
        return self._groups[key]

    def _pointers(self, args: Sequence[Argument]) -> Any:
        """Return an array of pointers to the arguments, cached because most tuples are launched again."""
        kept = self._packed.get(id(args))
        if kept is not None and kept[0] is args:
            return kept[2]
        values = [_value_of(one) for one in args]
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        if len(self._packed) >= 1 << 16:
            self._packed.clear()
        self._packed[id(args)] = (args, values, pointers)
        return pointers

    def wait(self) -> None:
        """Wait for all queued work. Raises DeviceError if it fails or exceeds the time limit."""
        self._call("cuEventRecord", self._done, self._stream)
        self._await(self._done)

    def _await(self, event: ctypes.c_void_p, spin_s: float = _SPIN_S) -> None:
        driver = self._shared.enter()
        start = time.perf_counter()  # time.monotonic has steps of 16 ms on Windows before Python 3.13
        while code := driver.result("cuEventQuery", event):
            if code != NOT_READY:
                raise self._shared.failed(driver.error("cuEventQuery", code))
            waited = time.perf_counter() - start
            if waited > self._limit_s:
                error = DeviceError(f"the GPU did not finish its work within {self._limit_s:g} seconds", code="lost")
                raise self._shared.failed(error)
            if waited >= spin_s:
                time.sleep(_SLEEP_S)

    def capture(self, queue: Callable[[], None]) -> int:
        """Capture launches as a CUDA graph and return its number."""
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", self._stream, _RELAXED)
        try:
            try:
                queue()
            finally:
                self._call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, 0)
        finally:
            if graph:
                self._call("cuGraphDestroy", graph)
        number = next(self._numbers)
        self._graphs[number] = made
        return number

    def replay(self, graph: int) -> None:
        """Queue a graph launch."""
        self._call("cuGraphLaunch", self._graphs[graph], self._stream)

    def forget(self, graph: int) -> None:
        """Destroy a graph."""
        self._call("cuGraphExecDestroy", self._graphs.pop(graph))

    def mark(self) -> int:
        """Record an event and return its number."""
        number = next(self._numbers)
        self._marks[number] = self._spare.pop() if self._spare else self._event(0)
        self._call("cuEventRecord", self._marks[number], self._stream)
        return number

    def times(self, marks: Sequence[int]) -> list[int]:
        """Return the nanoseconds between consecutive marks, and release the marks."""
        events = [self._marks.pop(mark) for mark in marks]
        out = []
        try:
            for before, after in itertools.pairwise(events):
                milliseconds = ctypes.c_float()
                self._call("cuEventElapsedTime", ctypes.byref(milliseconds), before, after)
                out.append(round(milliseconds.value * 1e6))
        finally:
            self._spare += events
        return out

    def reach(self, mark: int, is_soon: bool = False) -> None:
        """Wait for the work before a mark, and release the mark."""
        self._await(self._marks[mark], _SPIN_S if is_soon else 0.0)
        self._spare.append(self._marks.pop(mark))

    def new_stream(self) -> CudaDevice:
        """Return the device with a separate stream."""
        return CudaDevice(self._shared, self._limit_s, is_first=False)

    def close(self) -> None:
        """Destroy the stream. The first device also frees all memory."""
        if self._stream:
            self._end()

    def _end(self) -> None:
        shared, stream, self._stream = self._shared, self._stream, ctypes.c_void_p()
        if shared.lost is None:
            driver = shared.enter()
            # Errors are ignored during cleanup.
            driver.result("cuStreamDestroy_v2", stream)
            for graph in self._graphs.values():
                driver.result("cuGraphExecDestroy", graph)
            sent = (event for _, event in self._stages)
            for event in (self._done, *sent, *self._marks.values(), *self._spare):
                driver.result("cuEventDestroy_v2", event)
        self._stages = []
        if self._is_first:
            shared.close()

    def _event(self, flags: int) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), flags)
        return event

    def _call(self, name: str, *arguments: Any) -> None:
        driver = self._shared.enter()
        code = driver.result(name, *arguments)
        if code:
            raise self._shared.failed(driver.error(name, code))


def find_level(index: int = 0) -> str:
    """Return the level of a GPU, such as "sm_90", without opening it. Raises DeviceError if no GPU is usable."""
    driver = open_driver()
    n_devices = driver.n_devices()
    if n_devices == 0:
        raise DeviceError("no NVIDIA GPU was found", code="no_driver", remedy="use backend='cpu'")
    check_number(index, n_devices)
    architecture = 10 * driver.attribute(MAJOR, index) + driver.attribute(MINOR, index)
    if architecture < OLDEST:
        raise DeviceError(f"the GPU has compute capability sm_{architecture}, but sm_{OLDEST} or later is needed")
    _kernels(architecture, driver.version)
    return f"sm_{architecture}"


def _kernels(architecture: int, version: int) -> Archive | KernelCompiler:
    """Return the kernel archive, or the JIT compiler if the archive has no kernels for the architecture."""
    try:
        archive = Archive()
        archive.target(architecture, version)
        return archive
    except DeviceError as error:
        kernel_compiler = KernelCompiler.find() if error.code in ("no_kernels", "old_driver") else None
        if kernel_compiler is None:
            raise
    kernel_compiler.target(architecture, version)
    return kernel_compiler


def open_device(index: int = 0, driver: Driver | None = None, limit_s: float = 120.0) -> CudaDevice:
    """Open a GPU by number. Raise DeviceError if it is not usable, RequestError if the number does not exist."""
    driver = driver or open_driver()
    check_number(index, driver.n_devices())
    architecture = 10 * driver.attribute(MAJOR, index) + driver.attribute(MINOR, index)
    # A GPU that is too old fails in Context, with the better message.
    archive = _kernels(max(architecture, OLDEST), driver.version)
    return CudaDevice(Context(driver, index, archive), limit_s)
