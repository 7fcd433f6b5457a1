"""BlockMemory: suballocator over large GPU buffers, because drivers limit the number of allocations."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from woolly.errors import RequestError

_ALIGNMENT = 256  # upper limit of Vulkan's minStorageBufferOffsetAlignment


class Block:
    """A buffer with dedicated memory."""

    def __init__(self, buffer: Any, memory: Any, address: int, size: int, host: int) -> None:
        self.buffer, self.memory, self.address, self.size = buffer, memory, address, size
        self.host = host  # mapped host address; 0: not mapped
        self.gaps: list[tuple[int, int]] = [(0, size)]  # sorted (begin, end) of free ranges

    def take(self, size: int) -> int | None:
        """Allocate a range and return its offset, or None if no gap is large enough."""
        for i, (begin, end) in enumerate(self.gaps):
            if end - begin >= size:
                self.gaps[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Free a range and merge it with adjacent gaps."""
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
        """True if no range is in use."""
        return self.gaps == [(0, self.size)]


class BlockMemory(ABC):
    """All blocks of a device. Subclasses create and destroy blocks. Callers must hold the device's lock."""

    def __init__(self, n_bytes: int) -> None:
        """`n_bytes`: block size, except for larger allocations."""
        self._n_bytes = n_bytes
        self._blocks: list[Block] = []  # by address
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}  # sizes of allocated ranges, by address
        self.n_changes = 0  # version of the list of blocks

    @abstractmethod
    def make(self, size: int) -> Block:
        """Create a block. Raises RequestError if there is not enough memory."""

    @abstractmethod
    def drop(self, block: Block) -> None:
        """Destroy a block."""

    @property
    def blocks(self) -> Sequence[Block]:
        """Blocks, sorted by address."""
        return self._blocks

    def allocate(self, n_bytes: int) -> int:
        """Allocate memory and return its address. Raises RequestError if there is not enough."""
        size = -(-max(n_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        for block in self._blocks:
            if (at := block.take(size)) is not None:
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
            block = self.make(max(size, self._n_bytes))
        except RequestError:  # retry with the exact size
            block = self.make(size)
        i = bisect.bisect(self._starts, block.address)
        self._blocks.insert(i, block)
        self._starts.insert(i, block.address)
        self.n_changes += 1
        return block

    def free(self, address: int) -> None:
        """Free an allocation, and its block if it is then empty. No pending work may use it."""
        size = self._sizes.pop(address, None)
        if size is None:
            return
        block, at = self.find(address)
        block.give_back(at, size)
        if block.is_empty:
            i = self._blocks.index(block)
            del self._blocks[i], self._starts[i]
            self.n_changes += 1
            self.drop(block)

    def find(self, address: int) -> tuple[Block, int]:
        """Return the block of an address and the offset in it."""
        i = bisect.bisect(self._starts, address) - 1
        if i < 0 or address >= self._starts[i] + self._blocks[i].size:
            raise ValueError(f"{address:#x} is in no memory of this device")
        return self._blocks[i], address - self._starts[i]

    def close(self) -> None:
        """Destroy all blocks."""
        while self._blocks:
            self.drop(self._blocks.pop())
        self._starts.clear()
        self._sizes.clear()
