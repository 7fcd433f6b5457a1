"""The Physical device: what a GPU is and has, asked before anything is opened on it."""

from __future__ import annotations

import ctypes as c
import struct
from dataclasses import dataclass
from typing import Any

from woolly.errors import DeviceError, RequestError
from woolly.runtime.vulkan import matrices
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

_OLDEST, _WITH_DOTS = 1 << 22 | 2 << 12, 1 << 22 | 3 << 12  # Vulkan 1.2, and 1.3, which has dots without an extension
_SOFTWARE = 4  # a device type: the CPU itself
_KINDS = ("other", "integrated", "discrete", "virtual", "software")
_COMPUTE = 2  # a flag of queue families
_BUDGET, _DOTS = b"VK_EXT_memory_budget", b"VK_KHR_shader_integer_dot_product"

# Structs of features: the number of each, how many features it has, and places of those that matter here.
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
    (1000280000, 1, {"shaderIntegerDotProduct": 0}),  # of Vulkan 1.3, or of an extension
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
    """Structs of features of Vulkan 1.0 to 1.2 and of dots, with those that are wanted set. The first leads to all.

    That of matrices is the last, if they are wanted: a driver without their extension does not know it.
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
    """A GPU that Vulkan knows."""

    handle: c.c_void_p
    number: int  # as `--device vulkan:N` counts
    name: str
    kind: str
    identity: str  # of the GPU and its driver: what compiled kernels are good for
    features: frozenset[str]  # of FEATURES, shaderFloat64 and those of matrices, what it has
    controls: frozenset[str]  # of floats, as spirv.py names them
    family: int  # of queues that compute; -1: none
    has_budget: bool
    timestamp_ns: float  # of a tick
    timestamp_bits: int  # of its clock; 0: it has none
    shared_bytes: int  # most of a group
    memory: MemoryProperties
    driver: str = ""  # with its version, as it calls itself
    api: int = _OLDEST  # the version of Vulkan that it has
    has_matrices: bool = False  # units for units.slang

    @property
    def version(self) -> str:
        """The version of Vulkan, such as 1.3."""
        return f"{self.api >> 22}.{self.api >> 12 & 1023}"

    @property
    def extensions(self) -> list[bytes]:
        """Those that a device is opened with."""
        optional = [_BUDGET] * self.has_budget + [_DOTS] * (self.api < _WITH_DOTS)
        return optional + [matrices.EXTENSION] * self.has_matrices

    @property
    def is_software(self) -> bool:
        """Whether the CPU stands in for a GPU."""
        return self.kind == "software"

    def check(self) -> None:
        """DeviceError names what the GPU or its driver lacks."""
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
        """Bytes that are free and in all, of the largest memory of its own."""
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
    """All devices of Vulkan, real GPUs first: discrete, then integrated; software last."""
    found = [_describe(driver, handle) for handle in driver.physical_devices()]
    order = ("discrete", "integrated", "virtual", "other", "software")
    found.sort(key=lambda one: order.index(one.kind))
    return [Physical(**{**vars(one), "number": i}) for i, one in enumerate(found)]


def find_physical(driver: VulkanLibrary, number: int) -> Physical:
    """The device of that number, checked. RequestError if there is none."""
    found = list_physical(driver)
    if not 0 <= number < len(found):
        raise RequestError(
            f"device is 'vulkan:{number}', and Vulkan knows {len(found)} GPU{'s' * (len(found) != 1)} here:"
            " numbers count from 0",
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
    limits = 296  # of the struct of limits, which is aligned to 8 bytes
    shared = struct.unpack_from("I", properties, limits + _SHARED_AT)[0]
    tick = struct.unpack_from("f", properties, limits + _TICK_AT)[0]
    families, n = (QueueFamily * 16)(), c.c_uint32(16)
    driver.result("vkGetPhysicalDeviceQueueFamilyProperties", handle, c.byref(n), families)
    # One that computes alone leaves the screen's queue alone.
    able = [i for i in range(n.value) if families[i].flags & _COMPUTE]
    family = min(able, key=lambda i: int(families[i].flags) & 1, default=-1)
    memory = MemoryProperties()
    driver.result("vkGetPhysicalDeviceMemoryProperties", handle, c.byref(memory))
    extensions, features, has_matrices = _extensions(driver, handle), frozenset[str](), False
    if api >= _OLDEST:
        chain = features_chain(frozenset(matrices.FEATURES[:1] if matrices.EXTENSION in extensions else ()))
        driver.result("vkGetPhysicalDeviceFeatures2", handle, c.byref(chain[0]))
        pairs = zip(chain, (*_STRUCTS, _MATRICES), strict=False)
        features = frozenset(name for part, (*_, places) in pairs for name, at in places.items() if part.bits[at])
        sizes = tuple(_ask(driver, handle, matrices.SIZES_TYPE, 4).bits[:2])
        has_matrices = matrices.has_units(driver, handle, features, int(shared), sizes)
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
# VkPhysicalDeviceDriverProperties: a number, two texts of 256 bytes, four bytes.
_DRIVER_TYPE, _DRIVER_WORDS = 1000196000, 130
# Places in VkPhysicalDeviceLimits.
_SHARED_AT, _TICK_AT = 216, 424


def _ask(driver: VulkanLibrary, handle: c.c_void_p, s_type: int, n_words: int) -> Any:
    """The words of one struct of properties."""
    asked = FeaturesInfo(s_type, (c.c_uint32 * n_words)(), None)
    properties = c.create_string_buffer(2048)  # of VkPhysicalDeviceProperties2, larger than any
    struct.pack_into("=IIQ", properties, 0, _PROPERTIES_2_TYPE, 0, c.addressof(asked))
    driver.result("vkGetPhysicalDeviceProperties2", handle, properties)
    return asked


def _driver_of(driver: VulkanLibrary, handle: c.c_void_p) -> str:
    """The name of the driver, and what it says of its version."""
    text = bytes(_ask(driver, handle, _DRIVER_TYPE, _DRIVER_WORDS).bits)
    parts = (text[4 + 256 * i : 4 + 256 * (i + 1)].split(b"\0")[0].decode(errors="replace") for i in range(2))
    return " ".join(part for part in parts if part)


def _controls(driver: VulkanLibrary, handle: c.c_void_p) -> frozenset[str]:
    """What the GPU lets kernels ask of floats."""
    asked = _ask(driver, handle, _FLOAT_CONTROLS_TYPE, len(_FLOAT_CONTROLS))
    pairs = zip(_FLOAT_CONTROLS, asked.bits, strict=True)
    return frozenset(name for name, bit in pairs if bit and name in CONTROLS)


def _extensions(driver: VulkanLibrary, handle: c.c_void_p) -> set[bytes]:
    n = c.c_uint32()
    driver.result("vkEnumerateDeviceExtensionProperties", handle, None, c.byref(n), None)
    found = c.create_string_buffer(260 * max(1, n.value))
    driver.result("vkEnumerateDeviceExtensionProperties", handle, None, c.byref(n), found)
    return {found.raw[260 * i : 260 * i + 256].split(b"\0")[0] for i in range(n.value)}
