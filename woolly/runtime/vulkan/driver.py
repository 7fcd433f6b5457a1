"""The VulkanDevice: memory, copies, launches and recorded launches of one GPU.

Recorded launches are command buffers that are submitted again.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.errors import DeviceError
from woolly.runtime.gpu.probe import OWN_HALVES, differences, lost_in_trial, refusal
from woolly.runtime.gpu.queued import QueuedDevice
from woolly.runtime.vulkan import matrices
from woolly.runtime.vulkan.archive import open_archive
from woolly.runtime.vulkan.bandwidth import find_bandwidth
from woolly.runtime.vulkan.context import VulkanContext
from woolly.runtime.vulkan.level import LEVEL
from woolly.runtime.vulkan.libvulkan import VulkanLibrary, open_driver
from woolly.runtime.vulkan.physical import Physical, find_physical
from woolly.runtime.vulkan.staging import Staging
from woolly.runtime.vulkan.stream import CommandStream
from woolly.runtime.vulkan.structs import BufferCopy

if TYPE_CHECKING:
    from woolly.runtime.gpu.device import Address
    from woolly.runtime.gpu.kernels import Kernels

# GPUs of this process that were lost while their matrix units were tried, by number and identity.
_lost_units: set[tuple[int, str]] = set()


class VulkanDevice(QueuedDevice):
    """One GPU with one queue of work."""

    def __init__(self, shared: VulkanContext, limit_s: float, is_first: bool = True) -> None:
        self._shared, self._limit_s = shared, limit_s
        self._commands = CommandStream(shared, limit_s)
        super().__init__(shared, self._commands, Staging(shared, self._commands), is_first)

    @property
    def name(self) -> str:
        """Product name."""
        return self._shared.physical.name

    @property
    def level(self) -> str:
        """The same for all: what gives the bits of the cpu backend."""
        return LEVEL

    @property
    def driver(self) -> str:
        """Driver and version, with deviations from the arithmetic of the CPU."""
        physical = self._shared.physical
        text = f"{physical.driver}, Vulkan {physical.version}" if physical.driver else f"Vulkan {physical.version}"
        return text if self._shared.variant == "plain" else f"{text}, with f64 in place of fused multiply-adds"

    @property
    def kernels(self) -> Kernels:
        """Emitters of the kernels in native/gpu."""
        from woolly.runtime.vulkan.ops import KERNELS  # a machine without a GPU need not wait for them

        return KERNELS

    @property
    def architecture(self) -> int:
        """1 with usable matrix units (cooperative matrices), else 0."""
        return int(self._shared.has_matrices)

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory of a workgroup, in bytes."""
        return self._shared.physical.shared_bytes

    @property
    def physical(self) -> Physical:
        """What it is and has."""
        return self._shared.physical

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second of its memory, measured once; None of the CPU in place of a GPU."""
        if not self._shared.knows_bandwidth:
            self._shared.bandwidth, self._shared.knows_bandwidth = find_bandwidth(self), True
        return self._shared.bandwidth

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes."""
        return self._shared.physical.free_bytes(self._shared.enter())

    def zero(self, address: Address, n_bytes: int) -> None:
        """Queue filling memory with zeros."""
        if n_bytes:
            with self._shared.lock:
                block, at = self._shared.memory.find(int(address))
            # A multiple of 4 bytes: memory is handed out in pieces of 256.
            size = c.c_uint64(-(-n_bytes // 4) * 4)
            self._commands.record("vkCmdFillBuffer", block.buffer, c.c_uint64(at), size, 0)

    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queue a copy within device memory."""
        with self._shared.lock:
            (a, at), (b, place) = (self._shared.memory.find(int(one)) for one in (source, to))
        self._commands.record("vkCmdCopyBuffer", a.buffer, b.buffer, 1, c.byref(BufferCopy(at, place, n_bytes)))

    def precompile(self, kernels: Iterable[str]) -> None:
        """Nothing: the archive has all kernels, and the driver compiles each when it is prepared."""

    def beside(self) -> VulkanDevice:
        """Return a handle of the same device with a separate stream."""
        return VulkanDevice(self._shared, self._limit_s, is_first=False)


def choose_variant(device: VulkanDevice, context: VulkanContext) -> str:
    """The variant of kernels that gives exact results on the device. DeviceError if none does."""
    variants = ("plain", "double") if "shaderFloat64" in context.physical.features else ("plain",)
    wrong: list[str] = []
    for variant in variants:
        context.variant = variant
        found = differences(device)
        if not (wrong := [name for name in found if name != OWN_HALVES]):
            context.converts_halves = OWN_HALVES not in found
            return variant
    raise refusal(device, wrong)


def open_device(index: int = 0, driver: VulkanLibrary | None = None, limit_s: float = 120.0) -> VulkanDevice:
    """The GPU of that number, after a probe of its arithmetic. DeviceError if it cannot be used.

    Work that is not done after `limit_s` seconds counts as hanging. A GPU that is lost meanwhile can be opened again:
    without its matrix units, if they were tried then.
    """
    driver = driver or open_driver()
    physical = find_physical(driver, index)
    if (physical.number, physical.identity) in _lost_units:
        physical = replace(physical, has_matrices=False)
    try:
        return _open(driver, physical, limit_s)
    except DeviceError as error:
        if error.code == "lost":
            raise lost_in_trial(physical.name, error) from None
        raise


def _has_exact_units(device: VulkanDevice) -> bool:
    """Whether matrix units compute exactly, tried at every opening. A GPU that is lost meanwhile has none."""
    try:
        return matrices.is_exact(device)
    except DeviceError as error:
        if error.code == "lost":
            _lost_units.add((device.physical.number, device.physical.identity))
        raise


def _open(driver: VulkanLibrary, physical: Physical, limit_s: float) -> VulkanDevice:
    context = VulkanContext(driver, physical, open_archive())
    try:
        device = VulkanDevice(context, limit_s)
    except BaseException:
        context.close()
        raise
    try:
        context.variant = choose_variant(device, context)
        # Asked as the rest of the arithmetic is: a driver that is wrong there leaves these products to dots.
        if physical.has_matrices and context.variant == "plain":
            context.has_matrices = _has_exact_units(device)
    except BaseException:
        if context.lost is not None and not context.hangs:
            device.abandon()
        else:
            device.close()
        raise
    return device
