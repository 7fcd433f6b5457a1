"""Driver: ctypes bindings of libcuda that raise Woolly's exceptions on errors."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from copy import copy
from typing import Any

from woolly.errors import DeviceError, RequestError, WoollyError

# Cubins compiled with CUDA 12.x load on every CUDA 12 driver.
_OLDEST = 12_000

NOT_READY = 600
_OUT_OF_MEMORY = 2
_NO_DEVICE = (100, 101)
# Sticky errors, after which the context is unusable: destroyed context, hardware or launch failures, unknown errors.
_LOST = frozenset((4, 201, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, 999))
# Any error of this function comes from the queued work.
_OF_WORK = "cuEventQuery"

_HANDLE, _SIZE, _UINT, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int
_OUT, _TEXT, _PLACE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte value."""

    _fields_ = (("id", _INT), ("pad", _INT), ("value", _INT), ("rest", ctypes.c_ubyte * 60))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: grid, threads, shared memory, stream, attributes."""

    _fields_ = (
        *((name, _UINT) for name in ("x", "y", "z", "threads_x", "threads_y", "threads_z", "shared")),
        ("stream", _HANDLE),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("n_attributes", _UINT),
    )


# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: start when the preceding kernel triggers its dependents.
EARLY = _LaunchAttribute(6, 0, 1)

# Argument types by exported name; all functions return a CUresult. _OUT is a pointer to an output.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (_INT, _OUT),
    "cuGetErrorString": (_INT, _OUT),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGet": (_OUT, _INT),
    "cuDeviceGetName": (_OUT, _INT, _INT),
    "cuDeviceGetAttribute": (_OUT, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_OUT, _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemFree_v2": (_PLACE,),
    "cuMemHostRegister_v2": (_HANDLE, _SIZE, _UINT),
    "cuMemHostUnregister": (_HANDLE,),
    "cuMemcpyHtoDAsync_v2": (_PLACE, _HANDLE, _SIZE, _HANDLE),
    "cuMemcpyDtoHAsync_v2": (_HANDLE, _PLACE, _SIZE, _HANDLE),
    "cuMemsetD8Async": (_PLACE, ctypes.c_ubyte, _SIZE, _HANDLE),
    "cuStreamCreate": (_OUT, _UINT),
    "cuStreamDestroy_v2": (_HANDLE,),
    "cuStreamBeginCapture_v2": (_HANDLE, _INT),
    "cuStreamEndCapture": (_HANDLE, _OUT),
    "cuGraphInstantiateWithFlags": (_OUT, _HANDLE, ctypes.c_uint64),
    "cuGraphLaunch": (_HANDLE, _HANDLE),
    "cuGraphExecDestroy": (_HANDLE,),
    "cuGraphDestroy": (_HANDLE,),
    "cuEventCreate": (_OUT, _UINT),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventQuery": (_HANDLE,),
    "cuEventElapsedTime": (_OUT, _HANDLE, _HANDLE),
    "cuEventDestroy_v2": (_HANDLE,),
    "cuModuleLoadData": (_OUT, _TEXT),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_OUT, _HANDLE, _TEXT),
    "cuFuncSetAttribute": (_HANDLE, _INT, _INT),
    "cuLaunchKernel": (_HANDLE, *(_UINT,) * 7, _HANDLE, _OUT, _OUT),
    "cuLaunchKernelEx": (_OUT, _HANDLE, _OUT, _OUT),
    "cuOccupancyMaxActiveClusters": (_OUT, _HANDLE, _OUT),
}


class Driver:
    """Driver API functions by name. `call` raises an exception for an error code."""

    def __init__(self, library: Any) -> None:
        self._functions = {}
        for name, arguments in _PROTOTYPES.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                raise DeviceError(
                    f"the NVIDIA driver has no {name}; update it to version 525 or later", code="old_driver"
                ) from None
            function.argtypes, function.restype = arguments, ctypes.c_int
            self._functions[name] = function
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        if self.version < _OLDEST:
            major, minor = divmod(self.version, 1000)
            raise DeviceError(
                f"the NVIDIA driver supports CUDA {major}.{minor // 10}, but 12.0 or later is needed:"
                " update it to version 525 or later",
                code="old_driver",
            )
        self.call("cuInit", 0)

    def result(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result code."""
        code: int = self._functions[name](*arguments)
        return code

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises RequestError if out of memory, DeviceError on other errors."""
        code: int = self._functions[name](*arguments)
        if code:
            raise self.error(name, code)

    def error(self, name: str, code: int) -> DeviceError | RequestError:
        """Return the exception for a result code."""
        if code == _OUT_OF_MEMORY:
            return RequestError("the GPU has too little free memory", code="device_memory")
        if code in _NO_DEVICE:
            return DeviceError("no NVIDIA GPU was found", code="no_driver", remedy="use backend='cpu'")
        described = f"{self._text('cuGetErrorString', code)} ({self._text('cuGetErrorName', code)} from {name})"
        if code in _LOST or name == _OF_WORK:
            return DeviceError(f"the GPU failed: {described}", code="lost")
        return DeviceError(f"the NVIDIA driver refused a call: {described}", code="refused")

    def _text(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        self._functions[function](code, ctypes.byref(text))
        return (text.value or b"unknown error").decode(errors="replace")

    def attribute(self, number: int, device: int) -> int:
        """Return a device attribute."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def device_name(self, device: int) -> str:
        """Return the product name of a device."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, device)
        return name.value.decode(errors="replace")

    def n_devices(self) -> int:
        """Return the number of GPUs visible to the process."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value


def open_driver() -> Driver:
    """Return the driver of this machine. Raises DeviceError if it is missing, too old, or was started before a fork.

    The driver is initialized once per process and never in a forked child, where it may hang.
    """
    global _found
    with _lock:
        if _found is None:
            _found = os.getpid(), _start()
    process, found = _found
    if isinstance(found, WoollyError):
        raise copy(found)  # each caller may modify its copy
    if process != os.getpid():
        raise DeviceError(
            "the NVIDIA driver was initialized by the parent process, which forked this one",
            code="refused",
            remedy="start processes with spawn, or use backend='cpu'",
        )
    return found


def _library() -> str:
    # 64-bit Windows has one calling convention, so ctypes.CDLL works there, too.
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def _start() -> Driver | WoollyError:
    """Return the driver, or the error if it is not usable."""
    try:
        library = ctypes.CDLL(_library())
    except OSError:
        return DeviceError(
            f"this machine has no NVIDIA driver ({_library()} was not found)",
            code="no_driver",
            remedy="install one, or use backend='cpu'",
        )
    try:
        return Driver(library)
    except (DeviceError, RequestError) as error:
        return error


_found: tuple[int, Driver | WoollyError] | None = None  # process id and result
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a fork waits for an initialization in progress
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
