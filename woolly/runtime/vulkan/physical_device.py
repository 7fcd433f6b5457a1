"""Physical: properties, features and limits of a GPU, queried without creating a logical device."""

from __future__ import annotations

import ctypes as c
import struct
from dataclasses import dataclass
from typing import Any

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.spirv import CONTROLS
from woolly.runtime.vulkan.structs import (
    FeaturesInfo,
    MemoryBudget,
    MemoryProperties,
    MemoryProperties2,
    QueueFamily,
    reference,
)

_OLDEST, _WITH_DOTS = 1 << 22 | 2 << 12, 1 << 22 | 3 << 12  # Vulkan 1.2, and 1.3, which includes integer dot products
_SOFTWARE = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_KINDS = ("other", "integrated", "discrete", "virtual", "software")
_COMPUTE = 2  # VK_QUEUE_COMPUTE_BIT
_BUDGET, _DOTS = b"VK_EXT_memory_budget", b"VK_KHR_shader_integer_dot_product"

# Feature structs: sType, number of features, indices of the features used here.
_STRUCTS = (
    (1000059000, 55, {"shaderFloat64": 39, "shaderInt64": 40, "shaderInt16": 41}),
    (49, 12, {"storageBuffer16BitAccess": 0}),
    (
        51,
        47,
        {
            "storageBuffer8BitAccess": 2,
            "shaderFloat16": 7,
            "shaderInt8": 8,
            "scalarBlockLayout": 31,
            "hostQueryReset": 36,
            "timelineSemaphore": 37,
            "bufferDeviceAddress": 38,
            "vulkanMemoryModel": 41,
            "vulkanMemoryModelDeviceScope": 42,
        },
    ),
    (1000280000, 1, {"shaderIntegerDotProduct": 0}),  # Vulkan 1.3 or extension
)
_MATRICES = (1000506000, 2, {"cooperativeMatrix": 0})
FEATURES = (
    "bufferDeviceAddress",
    "hostQueryReset",
    "scalarBlockLayout",
    "shaderInt16",
    "shaderInt64",
    "shaderInt8",
    "shaderIntegerDotProduct",
    "storageBuffer16BitAccess",
    "storageBuffer8BitAccess",
    "timelineSemaphore",
)


def features_chain(wanted: frozenset[str]) -> list[Any]:
    """Return the pNext chain of feature structs (Vulkan 1.0 to 1.2, integer dot products) with `wanted` enabled.

    The cooperative matrix struct is last and only included if wanted, because other drivers do not support it.
    """
    chain: list[Any] = []
    for s_type, n, places in reversed((*_STRUCTS, _MATRICES) if "cooperativeMatrix" in wanted else _STRUCTS):
        bits = (c.c_uint32 * n)(*(0,) * n)
        for name in wanted & set(places):
            bits[places[name]] = 1
        chain.insert(0, FeaturesInfo(s_type, bits, reference(chain[0]) if chain else None))
    return chain


@dataclass(frozen=True)
class Physical:
    """A Vulkan physical device."""

    handle: c.c_void_p
    number: int  # N in `--device vulkan:N`
    name: str
    kind: str
    identity: str  # GPU and driver; key of the pipeline cache
    features: frozenset[str]  # supported features among FEATURES, shaderFloat64 and matrices.FEATURES
    controls: frozenset[str]  # supported float controls, as in spirv.py
    family: int  # compute queue family; -1: none
    has_budget: bool
    timestamp_ns: float  # nanoseconds per timestamp tick
    timestamp_bits: int  # valid timestamp bits; 0: no timestamps
    shared_bytes: int  # maximum shared memory of a workgroup
    memory: MemoryProperties
    driver: str = ""  # driver name and version
    api: int = _OLDEST  # supported Vulkan version
    has_matrices: bool = False  # usable matrix units

    @property
    def version(self) -> str:
        """Vulkan version, such as 1.3."""
        return f"{self.api >> 22}.{self.api >> 12 & 1023}"

    @property
    def extensions(self) -> list[bytes]:
        """Extensions to enable on the logical device."""
        optional = [_BUDGET] * self.has_budget + [_DOTS] * (self.api < _WITH_DOTS)
        return optional + [cooperative_matrix.EXTENSION] * self.has_matrices

    @property
    def is_software(self) -> bool:
        """True for a CPU driver, such as llvmpipe."""
        return self.kind == "software"

    def check(self) -> None:
        """Raise DeviceError naming missing features of the GPU or driver."""
        if self.api < _OLDEST:
            raise DeviceError(
                f"{self.name} has Vulkan {self.version}, and 1.2 is needed: a newer driver may have it",
                code="old_device",
                remedy="use backend='cpu'",
            )
        missing = [name for name in FEATURES if name not in self.features]
        if self.family < 0:
            missing.append("a queue that computes")
        if missing:
            raise DeviceError(
                f"{self.name} or its driver lacks {', '.join(missing)}: a newer driver may have it",
                code="old_device",
                remedy="use backend='cpu'",
            )

    def free_bytes(self, driver: VulkanLibrary) -> tuple[int, int]:
        """Return free and total bytes of the largest device-local heap."""
        budget = MemoryBudget((c.c_uint64 * 16)(), (c.c_uint64 * 16)())
        asked = MemoryProperties2(MemoryProperties(), next=reference(budget) if self.has_budget else None)
        driver.result("vkGetPhysicalDeviceMemoryProperties2", self.handle, c.byref(asked))
        heaps = asked.properties.heaps[: asked.properties.n_heaps]
        own = [i for i, heap in enumerate(heaps) if heap.flags & 1] or list(range(len(heaps)))
        best = max(own, key=lambda i: int(heaps[i].size))
        total = int(heaps[best].size)
        free = int(budget.budget[best]) - int(budget.usage[best]) if self.has_budget else total
        return max(0, min(free, total)), total


def list_physical(driver: VulkanLibrary) -> list[Physical]:
    """List all devices: discrete GPUs first, then integrated ones, CPU drivers last."""
    found = [_describe(driver, handle) for handle in driver.physical_devices()]
    order = ("discrete", "integrated", "virtual", "other", "software")
    found.sort(key=lambda one: order.index(one.kind))
    return [Physical(**{**vars(one), "number": i}) for i, one in enumerate(found)]


def find_physical(driver: VulkanLibrary, number: int) -> Physical:
    """Return a device by number, after `check`. Raises RequestError for an unknown number."""
    found = list_physical(driver)
    if not 0 <= number < len(found):
        raise RequestError(
            f"device is 'vulkan:{number}', and Vulkan has {len(found)} GPU{'s' * (len(found) != 1)} here:"
            " numbers start at 0",
            field="device",
        )
    found[number].check()
    return found[number]


def _describe(driver: VulkanLibrary, handle: c.c_void_p) -> Physical:
    properties = c.create_string_buffer(2048)
    driver.result("vkGetPhysicalDeviceProperties", handle, properties)
    api, version, vendor, device, kind = struct.unpack_from("5I", properties, 0)
    name = properties.raw[20 : 20 + 256].split(b"\0")[0].decode(errors="replace")
    uuid = properties.raw[276:292].hex()
    limits = 296  # offset of VkPhysicalDeviceLimits, aligned to 8 bytes
    shared = struct.unpack_from("I", properties, limits + _SHARED_AT)[0]
    tick = struct.unpack_from("f", properties, limits + _TICK_AT)[0]
    families, n = (QueueFamily * 16)(), c.c_uint32(16)
    driver.result("vkGetPhysicalDeviceQueueFamilyProperties", handle, c.byref(n), families)
    # Prefer a compute-only queue family, to leave the graphics queue to the display.
    able = [i for i in range(n.value) if families[i].flags & _COMPUTE]
    family = min(able, key=lambda i: int(families[i].flags) & 1, default=-1)
    memory = MemoryProperties()
    driver.result("vkGetPhysicalDeviceMemoryProperties", handle, c.byref(memory))
    extensions, features, has_matrices = _extensions(driver, handle), frozenset[str](), False
    if api >= _OLDEST:
        chain = features_chain(
            frozenset(cooperative_matrix.FEATURES[:1] if cooperative_matrix.EXTENSION in extensions else ())
        )
        driver.result("vkGetPhysicalDeviceFeatures2", handle, c.byref(chain[0]))
        pairs = zip(chain, (*_STRUCTS, _MATRICES), strict=False)
        features = frozenset(name for part, (*_, places) in pairs for name, at in places.items() if part.bits[at])
        sizes = tuple(_ask(driver, handle, cooperative_matrix.SIZES_TYPE, 4).bits[:2])
        has_matrices = cooperative_matrix.has_units(driver, handle, features, int(shared), sizes)
    return Physical(
        handle,
        0,
        name,
        _KINDS[kind] if kind < len(_KINDS) else "other",
        f"{vendor:x}-{device:x}-{version:x}-{uuid}",
        features,
        _controls(driver, handle) if api >= _OLDEST else frozenset(),
        family,
        _BUDGET in extensions,
        float(tick),
        int(families[family].bits) if able else 0,
        int(shared),
        memory,
        _driver_of(driver, handle) if api >= _OLDEST else "",
        api,
        has_matrices,
    )


# VkPhysicalDeviceFloatControlsProperties.
_PROPERTIES_2_TYPE, _FLOAT_CONTROLS_TYPE = 1000059001, 1000197000
_FLOAT_CONTROLS = (
    *("denormBehaviorIndependence", "roundingModeIndependence"),
    *(f"shaderSignedZeroInfNanPreserveFloat{n}" for n in (16, 32, 64)),
    *(f"shaderDenormPreserveFloat{n}" for n in (16, 32, 64)),
    *(f"shaderDenormFlushToZeroFloat{n}" for n in (16, 32, 64)),
    *(f"shaderRoundingModeRTEFloat{n}" for n in (16, 32, 64)),
    *(f"shaderRoundingModeRTZFloat{n}" for n in (16, 32, 64)),
)
# VkPhysicalDeviceDriverProperties: driver id, two 256-byte strings, four bytes.
_DRIVER_TYPE, _DRIVER_WORDS = 1000196000, 130
# Offsets in VkPhysicalDeviceLimits.
_SHARED_AT, _TICK_AT = 216, 424


def _ask(driver: VulkanLibrary, handle: c.c_void_p, s_type: int, n_words: int) -> Any:
    """Query a property struct of `n_words` 32-bit words."""
    asked = FeaturesInfo(s_type, (c.c_uint32 * n_words)(), None)
    properties = c.create_string_buffer(2048)  # VkPhysicalDeviceProperties2, rounded up
    struct.pack_into("=IIQ", properties, 0, _PROPERTIES_2_TYPE, 0, c.addressof(asked))
    driver.result("vkGetPhysicalDeviceProperties2", handle, properties)
    return asked


def _driver_of(driver: VulkanLibrary, handle: c.c_void_p) -> str:
    """Return the name and version text of the driver."""
    text = bytes(_ask(driver, handle, _DRIVER_TYPE, _DRIVER_WORDS).bits)
    parts = (text[4 + 256 * i : 4 + 256 * (i + 1)].split(b"\0")[0].decode(errors="replace") for i in range(2))
    return " ".join(part for part in parts if part)


def _controls(driver: VulkanLibrary, handle: c.c_void_p) -> frozenset[str]:
    """Return the supported float controls."""
    asked = _ask(driver, handle, _FLOAT_CONTROLS_TYPE, len(_FLOAT_CONTROLS))
    pairs = zip(_FLOAT_CONTROLS, asked.bits, strict=True)
    return frozenset(name for name, bit in pairs if bit and name in CONTROLS)


def _extensions(driver: VulkanLibrary, handle: c.c_void_p) -> set[bytes]:
    n = c.c_uint32()
    driver.result("vkEnumerateDeviceExtensionProperties", handle, None, c.byref(n), None)
    found = c.create_string_buffer(260 * max(1, n.value))
    driver.result("vkEnumerateDeviceExtensionProperties", handle, None, c.byref(n), found)
    return {found.raw[260 * i : 260 * i + 256].split(b"\0")[0] for i in range(n.value)}
