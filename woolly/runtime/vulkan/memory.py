"""Memory: Vulkan buffers in device-local or host-visible memory."""

from __future__ import annotations

import ctypes as c
from typing import Any

from woolly.errors import RequestError
from woolly.runtime.gpu.memory import Block, BlockMemory
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.physical_device import Physical
from woolly.runtime.vulkan.structs import AddressInfo, AllocateFlags, AllocateInfo, BufferInfo, Requirements, reference

# Drivers allow 4,096 allocations of at most 2 to 4 GiB each: 1 TB in blocks of this size.
_BLOCK = 256 << 20
_SMALL_BLOCK = 32 << 20  # for CPU devices, which use system memory; tests open many devices
_STORAGE = 0x20000 | 0x20 | 1 | 2  # usage: device address, storage, copy source and target
_ADDRESSED = 2
# Memory property flags: device-local, host-visible, -coherent, -cached.
_OWN, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8


class Memory(BlockMemory):
    """All blocks of a Vulkan device. Callers must hold the device's lock."""

    def __init__(self, driver: VulkanLibrary, physical: Physical, device: Any) -> None:
        super().__init__(_SMALL_BLOCK if physical.is_software else _BLOCK)
        self._driver, self._physical, self._device = driver, physical, device

    def make(self, size: int) -> Block:
        """Create a device-local block."""
        return self.block(size, is_host=False)

    def block(self, size: int, is_host: bool, is_read: bool = False) -> Block:
        """Create a device-local block, or a mapped one with `is_host`. `is_read`: the host reads it."""
        buffer, memory, host = c.c_void_p(), c.c_void_p(), c.c_void_p()
        info = BufferInfo(0, size, _STORAGE, 0, 0, None)
        self._driver.call("vkCreateBuffer", self._device, c.byref(info), None, c.byref(buffer))
        try:
            needs = Requirements()
            self._driver.result("vkGetBufferMemoryRequirements", self._device, buffer, c.byref(needs))
            flags = AllocateFlags(_ADDRESSED, 0)
            kind = self._kind(int(needs.types), is_host, is_read)
            wanted = AllocateInfo(int(needs.size), kind, next=reference(flags))
            self._driver.call("vkAllocateMemory", self._device, c.byref(wanted), None, c.byref(memory))
            self._driver.call("vkBindBufferMemory", self._device, buffer, memory, c.c_uint64(0))
            if is_host:
                whole = c.c_uint64(int(needs.size))
                self._driver.call("vkMapMemory", self._device, memory, c.c_uint64(0), whole, 0, c.byref(host))
        except BaseException:
            self._driver.result("vkDestroyBuffer", self._device, buffer, None)
            self._driver.result("vkFreeMemory", self._device, memory, None)  # may be null
            raise
        asked = AddressInfo(buffer)
        address = self._driver.result("vkGetBufferDeviceAddress", self._device, c.byref(asked))
        return Block(buffer, memory, address, size, host.value or 0)

    def _kind(self, fitting: int, is_host: bool, is_read: bool) -> int:
        """Return the memory type: device-local, or host-visible (cached if read by the host)."""
        types: Any = self._physical.memory
        kinds = [(i, types.types[i].flags) for i in range(types.n_types) if fitting >> i & 1]
        if not is_host:
            # Prefer memory that is not host-visible: the visible part (BAR) may be small.
            best = sorted(kinds, key=lambda kind: (not kind[1] & _OWN, bool(kind[1] & _VISIBLE)))
            return best[0][0]
        seen = [kind for kind in kinds if kind[1] & _VISIBLE and kind[1] & _COHERENT]
        if not seen:
            raise RequestError("the GPU has no host-visible memory", code="device_memory")
        return min(seen, key=lambda kind: (bool(kind[1] & _CACHED) != is_read, bool(kind[1] & _OWN)))[0]

    def drop(self, block: Block) -> None:
        """Destroy a block."""
        self._driver.result("vkDestroyBuffer", self._device, block.buffer, None)
        self._driver.result("vkFreeMemory", self._device, block.memory, None)
