"""VulkanDevice: memory, copies, launches and graphs of one GPU.

Graphs are reusable command buffers.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.errors import DeviceError
from woolly.runtime.gpu.command_buffer_device import CommandBufferDevice
from woolly.runtime.gpu.probe import OWN_HALVES, device_lost_error, differences, refusal
from woolly.runtime.vulkan import cooperative_matrix
from woolly.runtime.vulkan.auto_selection import LEVEL
from woolly.runtime.vulkan.bandwidth import find_bandwidth
from woolly.runtime.vulkan.context import VulkanContext
from woolly.runtime.vulkan.kernel_archive import open_archive
from woolly.runtime.vulkan.libvulkan import VulkanLibrary, open_driver
from woolly.runtime.vulkan.physical_device import Physical, find_physical
from woolly.runtime.vulkan.staging import Staging
from woolly.runtime.vulkan.stream import CommandStream
from woolly.runtime.vulkan.structs import BufferCopy

if TYPE_CHECKING:
    from woolly.runtime.gpu.device import Address
    from woolly.runtime.gpu.kernels import Kernels

# GPUs lost in this process during the matrix unit test, by number and identity.
_lost_units: set[tuple[int, str]] = set()


class VulkanDevice(CommandBufferDevice):
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
        """Kernel level, the same for all GPUs: results match the CPU backend."""
        return LEVEL

    @property
    def driver(self) -> str:
        """Driver and version, with deviations from CPU arithmetic."""
        physical = self._shared.physical
        text = f"{physical.driver}, Vulkan {physical.version}" if physical.driver else f"Vulkan {physical.version}"
        return text if self._shared.variant == "plain" else f"{text}, with f64 in place of fused multiply-adds"

    @property
    def kernels(self) -> Kernels:
        """Emitters of the kernels in native/gpu."""
        from woolly.runtime.vulkan.ops import KERNELS  # not needed on machines without a GPU

        return KERNELS

    @property
    def architecture(self) -> int:
        """1 if the GPU has usable matrix units (cooperative matrices), else 0."""
        return int(self._shared.has_matrices)

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory of a workgroup, in bytes."""
        return self._shared.physical.shared_bytes

    @property
    def physical(self) -> Physical:
        """Properties of the physical device."""
        return self._shared.physical

    @property
    def bandwidth(self) -> float | None:
        """Memory bandwidth in bytes per second, measured once, or None for a CPU driver."""
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
            # Round up to 4 bytes; allocations are multiples of 256.
            size = c.c_uint64(-(-n_bytes // 4) * 4)
            self._commands.record("vkCmdFillBuffer", block.buffer, c.c_uint64(at), size, 0)

    def copy(self, source: Address, to: Address, n_bytes: int) -> None:
        """Queue a copy within device memory."""
        with self._shared.lock:
            (a, at), (b, place) = (self._shared.memory.find(int(one)) for one in (source, to))
        self._commands.record("vkCmdCopyBuffer", a.buffer, b.buffer, 1, c.byref(BufferCopy(at, place, n_bytes)))

    def precompile(self, kernels: Iterable[str]) -> None:
        """Do nothing, because the archive contains all kernels and `prepare` compiles them."""

    def new_stream(self) -> VulkanDevice:
        """Return a handle of the same device with a separate stream."""
        return VulkanDevice(self._shared, self._limit_s, is_first=False)


def choose_variant(device: VulkanDevice, context: VulkanContext) -> str:
    """Return the kernel variant with exact results on the device. Raises DeviceError if there is none."""
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
    """Open a GPU by number and probe its arithmetic. Raises DeviceError if it cannot be used.

    `limit_s`: timeout of queued work in seconds. A GPU lost during the probe can be opened again. It is then used
    without matrix units if their test caused the loss.
    """
    driver = driver or open_driver()
    physical = find_physical(driver, index)
    if (physical.number, physical.identity) in _lost_units:
        physical = replace(physical, has_matrices=False)
    try:
        return _open(driver, physical, limit_s)
    except DeviceError as error:
        if error.code == "lost":
            raise device_lost_error(physical.name, error) from None
        raise


def _has_exact_units(device: VulkanDevice) -> bool:
    """Test whether matrix units compute exactly. If the test loses the GPU, later openings do not use them."""
    try:
        return cooperative_matrix.is_exact(device)
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
        # If the test fails, matrix products use dot product kernels.
        if physical.has_matrices and context.variant == "plain":
            context.has_matrices = _has_exact_units(device)
    except BaseException:
        if context.lost is not None and not context.hangs:
            device.abandon()
        else:
            device.close()
        raise
    return device
