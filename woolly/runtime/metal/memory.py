"""MetalMemory: Metal buffers in shared storage mode, which the CPU can access directly (unified memory)."""

from __future__ import annotations

import ctypes as c

from woolly.errors import RequestError
from woolly.runtime.gpu.memory import Block, BlockMemory
from woolly.runtime.metal.libobjc import ObjectiveC

_SHARED = 0  # storage mode


class MetalMemory(BlockMemory):
    """All blocks of a device. Callers must hold the device's lock."""

    # Large, because every command buffer lists all blocks. All chips allow buffers of 3.5 GiB.
    BLOCK = 256 << 20

    def __init__(self, driver: ObjectiveC, device: int) -> None:
        super().__init__(self.BLOCK)
        self._driver, self._device = driver, device

    def make(self, size: int) -> Block:
        """Create a block."""
        options = c.c_uint64(size), c.c_uint64(_SHARED)
        buffer = self._driver.send(self._device, "newBufferWithLength:options:", *options)
        if not buffer:
            raise RequestError("the GPU is out of memory", code="device_memory")
        address = self._driver.send(buffer, "gpuAddress", result=c.c_uint64)
        return Block(buffer, None, address, size, self._driver.send(buffer, "contents"))

    def drop(self, block: Block) -> None:
        """Destroy a block."""
        self._driver.send(block.buffer, "release", result=None)
