"""BlockMemory: buffers of a GPU in large blocks, of which parts are handed out: drivers grant few allocations."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from woolly.errors import RequestError

_ALIGNMENT = 256  # the most that Vulkan lets a driver ask for (minStorageBufferOffsetAlignment)


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


class BlockMemory(ABC):
    """All blocks of a device. Its users hold a lock. A kind of GPU makes and ends blocks."""

    def __init__(self, n_bytes: int) -> None:
        """`n_bytes`: of a block, unless what is asked for is larger."""
        self._n_bytes = n_bytes
        self._blocks: list[Block] = []  # by address
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}  # of parts that are in use, by address
        self.n_changes = 0  # of the list of blocks

    @abstractmethod
    def make(self, size: int) -> Block:
        """A new block of the device. RequestError if there is not enough memory."""

    @abstractmethod
    def drop(self, block: Block) -> None:
        """Ends a block."""

    @property
    def blocks(self) -> Sequence[Block]:
        """All of them."""
        return self._blocks

    def allocate(self, n_bytes: int) -> int:
        """The address of new memory. RequestError if there is not enough."""
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
        except RequestError:  # a smaller one may fit
            block = self.make(size)
        i = bisect.bisect(self._starts, block.address)
        self._blocks.insert(i, block)
        self._starts.insert(i, block.address)
        self.n_changes += 1
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
            self.n_changes += 1
            self.drop(block)

    def find(self, address: int) -> tuple[Block, int]:
        """The block of an address, and the offset in it."""
        i = bisect.bisect(self._starts, address) - 1
        if i < 0 or address >= self._starts[i] + self._blocks[i].size:
            raise ValueError(f"{address:#x} is in no memory of this device")
        return self._blocks[i], address - self._starts[i]

    def close(self) -> None:
        """Ends all blocks."""
        while self._blocks:
            self.drop(self._blocks.pop())
        self._starts.clear()
        self._sizes.clear()
