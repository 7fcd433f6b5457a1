"""VulkanLibrary: Vulkan functions from the loader, or directly from a driver without a loader."""

from __future__ import annotations

import ctypes as c
import functools
import os
import sys
from typing import Any

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan.structs import AppInfo, InstanceInfo, reference

# The loader, then drivers that work without it: NVIDIA servers often have no loader.
_NAMES = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.1.dylib", "libMoltenVK.dylib"),
    "linux": ("libvulkan.so.1", "libGLX_nvidia.so.0", "libEGL_nvidia.so.0"),
}
_API = 1 << 22 | 3 << 12  # 1.3
_INTERFACE = 5  # ICD interface version, for use without a loader
NOT_READY, TIMEOUT = 1, 2
_LOST = -4
_OUT_OF_MEMORY = (-1, -2)
_RESULTS = {
    -1: "the host has no memory left",
    -2: "the GPU is out of memory",
    -3: "the driver could not start",
    -7: "an extension is missing",
    -8: "a feature is missing",
    -9: "the driver is too old",
    -10: "too many objects are open",
    -13: "the driver does not say why",
}


class VulkanLibrary:
    """Functions of a Vulkan instance."""

    def __init__(self, library: Any, is_loader: bool) -> None:
        self._instance: Any = None
        self._found: dict[str, Any] = {}
        if is_loader:
            self._get = library.vkGetInstanceProcAddr
        else:
            library.vk_icdNegotiateLoaderICDInterfaceVersion(c.byref(c.c_uint32(_INTERFACE)))
            self._get = library.vk_icdGetInstanceProcAddr
        self._get.restype, self._get.argtypes = c.c_void_p, [c.c_void_p, c.c_char_p]
        # Portability drivers (MoltenVK) are only listed if this extension is enabled.
        words = [b"VK_KHR_portability_enumeration"] if sys.platform == "darwin" else []
        names = (c.c_char_p * max(1, len(words)))(*words)
        app = AppInfo(b"woolly", 1, b"woolly", 1, _API)
        flags = int(bool(words))
        info = InstanceInfo(flags, reference(app), 0, None, len(words), c.cast(names, c.c_void_p))
        instance = c.c_void_p()
        self.call("vkCreateInstance", c.byref(info), None, c.byref(instance))
        self._instance = instance

    def result(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result; 0 is success."""
        found = self._found.get(name)
        if found is None:
            place = self._get(self._instance, name.encode())
            if not place:
                raise DeviceError(f"the Vulkan driver does not support {name}: it is too old", code="old_driver")
            kind = c.c_uint64 if name == "vkGetBufferDeviceAddress" else c.c_int
            found = self._found[name] = c.CFUNCTYPE(kind)(place)
        return int(found(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise an error if it fails."""
        if code := self.result(name, *arguments):
            raise self.error(name, code)

    def error(self, name: str, code: int) -> DeviceError | RequestError:
        """Return the error for a result code."""
        if code == _LOST:
            return DeviceError(f"the GPU was lost in {name}: the driver reset it", code="lost")
        if code in _OUT_OF_MEMORY:
            return RequestError(f"{_RESULTS[code]} ({name})", code="device_memory")
        return DeviceError(f"{name} failed: {_RESULTS.get(code, f'result {code}')}", code="driver")

    def physical_devices(self) -> list[c.c_void_p]:
        """Return the handles of all physical devices."""
        n = c.c_uint32()
        self.call("vkEnumeratePhysicalDevices", self._instance, c.byref(n), None)
        found = (c.c_void_p * max(1, n.value))()
        if n.value:
            self.call("vkEnumeratePhysicalDevices", self._instance, c.byref(n), found)
        return [c.c_void_p(one) for one in found[: n.value]]


def open_driver() -> VulkanLibrary:
    """Return the driver, opened once per process. Raises DeviceError if there is no driver, or in a forked child."""
    process, driver = _opened()
    if process != os.getpid():
        raise DeviceError(
            "Vulkan was initialized by the parent process, which forked this one",
            code="refused",
            remedy="start processes with spawn, or use backend='cpu'",
        )
    return driver


@functools.cache
def _opened() -> tuple[int, VulkanLibrary]:
    """Return the driver, and the id of the process that opened it, to detect forks."""
    return os.getpid(), _start()


def _start() -> VulkanLibrary:
    """Open the driver. Raises DeviceError if there is none."""
    named = os.environ.get("WOOLLY_VULKAN_DRIVER")
    last: DeviceError | None = None
    for name in (named,) if named else _NAMES.get(sys.platform, _NAMES["linux"]):
        try:
            library = c.CDLL(name)
        except OSError:
            continue
        is_loader = hasattr(library, "vkGetInstanceProcAddr") and not hasattr(library, "vk_icdGetInstanceProcAddr")
        if not is_loader and not hasattr(library, "vk_icdGetInstanceProcAddr"):
            continue
        try:
            driver = VulkanLibrary(library, is_loader)
            if driver.physical_devices():
                return driver
            last = DeviceError("Vulkan finds no GPU here", code="no_driver", remedy="use backend='cpu'")
        except (DeviceError, RequestError) as error:
            last = DeviceError(f"Vulkan cannot be used: {error}", code="no_driver", remedy="use backend='cpu'")
    if last is not None:
        raise last
    raise DeviceError(
        f"{named} is not a Vulkan library (WOOLLY_VULKAN_DRIVER)"
        if named
        else "there is no Vulkan here: install the GPU's driver and libvulkan1",
        code="no_driver",
        remedy="use backend='cpu'",
    )
