"""Memory: buffers of a GPU in large blocks, of which parts are handed out, because drivers grant few allocations."""

from __future__ import annotations

import bisect
import ctypes as c
from typing import Any

from woolly.errors import RequestError
from woolly.runtime.vulkan.libvulkan import VulkanLibrary
from woolly.runtime.vulkan.physical import Physical
from woolly.runtime.vulkan.structs import AddressInfo, AllocateFlags, AllocateInfo, BufferInfo, Requirements, reference

__all__ = ["Block", "Memory"]

_ALIGNMENT = 256  # the most that Vulkan lets a driver ask for (minStorageBufferOffsetAlignment)
# Drivers grant 4096 allocations in all, and one has at most 2 to 4 GiB: 1 TB in blocks of this size.
_BLOCK = 256 << 20
_SMALL_BLOCK = 32 << 20  # of software devices, whose memory is the machine's: tests open many
_STORAGE = 0x20000 | 0x20 | 1 | 2  # addresses, storage, both ends of copies
_ADDRESSED = 2
# Flags of types of memory.
_OWN, _VISIBLE, _COHERENT, _CACHED = 1, 2, 4, 8


class Block:
    """A buffer over memory of its own."""

    def __init__(self, buffer: Any, memory: Any, address: int, size: int, host: int) -> None:
        self.buffer, self.memory, self.address, self.size = buffer, memory, address, size
        self.host = host  # where the host sees it; 0: nowhere
        self.gaps: list[tuple[int, int]] = [(0, size)]  # begin and end of each, in order

    def take(self, size: int) -> int | None:
        """The offset of a part; None if no gap is large enough."""
        for i, (begin, end) in enumerate(self.gaps):
            if end - begin >= size:
                self.gaps[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Makes a part a gap again, one with its neighbours."""
        i = bisect.bisect(self.gaps, (offset, offset))
        begin, end = offset, offset + size
        if i < len(self.gaps) and self.gaps[i][0] == end:
            end = self.gaps.pop(i)[1]
        if i > 0 and self.gaps[i - 1][1] == begin:
            i -= 1
            begin = self.gaps.pop(i)[0]
        self.gaps.insert(i, (begin, end))

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is in use."""
        return self.gaps == [(0, self.size)]


class Memory:
    """All blocks of a device. Its users hold a lock."""

    def __init__(self, driver: VulkanLibrary, physical: Physical, device: Any) -> None:
        self._driver, self._physical, self._device = driver, physical, device
        self._blocks: list[Block] = []  # by address
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}  # of parts that are in use, by address
        self._block = _SMALL_BLOCK if physical.is_software else _BLOCK

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory. RequestError if there is not enough."""
        size = -(-max(n_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        for block in self._blocks:
            if block.host == 0 and (at := block.take(size)) is not None:
                break
        else:
            block = self._new(size)
            found = block.take(size)
            assert found is not None
            at = found
        self._sizes[block.address + at] = size
        return block.address + at

    def _new(self, size: int) -> Block:
        try:
            block = self.block(max(size, self._block), is_host=False)
        except RequestError:  # a smaller one may fit
            block = self.block(size, is_host=False)
        i = bisect.bisect(self._starts, block.address)
        self._blocks.insert(i, block)
        self._starts.insert(i, block.address)
        return block

    def free(self, address: int) -> None:
        """Gives a part back, and its block if that is empty then. No work that uses it may be under way."""
        size = self._sizes.pop(address, None)
        if size is None:
            return
        block, at = self.find(address)
        block.give_back(at, size)
        if block.is_empty:
            i = self._blocks.index(block)
            del self._blocks[i], self._starts[i]
            self.drop(block)

    def find(self, address: int) -> tuple[Block, int]:
        """The block of an address, and the offset in it."""
        i = bisect.bisect(self._starts, address) - 1
        if i < 0 or address >= self._starts[i] + self._blocks[i].size:
            raise ValueError(f"{address:#x} is in no memory of this device")
        return self._blocks[i], address - self._starts[i]

    def block(self, size: int, is_host: bool, is_read: bool = False) -> Block:
        """A new block of the device, or one that the host sees; `is_read`: and reads."""
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
            self._driver.result("vkFreeMemory", self._device, memory, None)  # which may be none
            raise
        asked = AddressInfo(buffer)
        address = self._driver.result("vkGetBufferDeviceAddress", self._device, c.byref(asked))
        return Block(buffer, memory, address, size, host.value or 0)

    def _kind(self, fitting: int, is_host: bool, is_read: bool) -> int:
        """The type of memory: the GPU's own, or the host's, cached if it is read."""
        types: Any = self._physical.memory
        kinds = [(i, types.types[i].flags) for i in range(types.n_types) if fitting >> i & 1]
        if not is_host:
            # Best is memory of the GPU that the host does not see: the part that it sees may be small.
            best = sorted(kinds, key=lambda kind: (not kind[1] & _OWN, bool(kind[1] & _VISIBLE)))
            return best[0][0]
        seen = [kind for kind in kinds if kind[1] & _VISIBLE and kind[1] & _COHERENT]
        if not seen:
            raise RequestError("the GPU has no memory that the host sees", code="device_memory")
        return min(seen, key=lambda kind: (bool(kind[1] & _CACHED) != is_read, bool(kind[1] & _OWN)))[0]

    def drop(self, block: Block) -> None:
        """Ends a block."""
        self._driver.result("vkDestroyBuffer", self._device, block.buffer, None)
        self._driver.result("vkFreeMemory", self._device, block.memory, None)

    def close(self) -> None:
        """Ends all blocks."""
        while self._blocks:
            self.drop(self._blocks.pop())
        self._starts.clear()
        self._sizes.clear()
