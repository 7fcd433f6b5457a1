"""Staging: copies between host arrays and GPU memory through host-visible buffers."""

from __future__ import annotations

import ctypes as c
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.runtime.gpu.memory import Block
from woolly.runtime.vulkan.context import VulkanContext
from woolly.runtime.vulkan.stream import CommandStream
from woolly.runtime.vulkan.structs import BufferCopy

_INLINE = 1 << 16  # bytes: Vulkan's limit for vkCmdUpdateBuffer
# Size of each of two staging buffers: one is copied while the other is filled. A copy takes about 0.3 ms at 25 GB/s,
# far longer than a submission.
_STAGE = 8 << 20


class Staging:
    """Uploads and downloads of one stream."""

    def __init__(self, shared: VulkanContext, stream: CommandStream) -> None:
        self._shared, self._stream = shared, stream
        self._stages: list[tuple[Block, int]] = []  # staging buffer and the timeline value at which it is free
        self._next = 0
        self._returns: list[Block] = []  # free readback buffers
        self._coming: deque[tuple[int, Block, npt.NDArray[Any]]] = deque()

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Queue an inline update (vkCmdUpdateBuffer) of at most 64 KB, a multiple of 4 bytes."""
        with self._shared.lock:
            block, at = self._shared.memory.find(address)
        size = c.c_uint64(data.nbytes)
        self._stream.record("vkCmdUpdateBuffer", block.buffer, c.c_uint64(at), size, c.c_void_p(data.ctypes.data))

    def upload(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Queue an upload. The array may change after the call."""
        if data.nbytes <= _INLINE and data.nbytes % 4 == 0 and address % 4 == 0:
            if data.nbytes:
                self.write(address, data)
            return
        while len(self._stages) < 2:
            self._stages.append((self._block(_STAGE, False), 0))
        with self._shared.lock:
            target, start = self._shared.memory.find(address)
        for at in range(0, len(data), _STAGE):
            piece = data[at : at + _STAGE]
            stage, free_from = self._stages[self._next]
            if not self._stream.is_done(free_from):
                self._stream.submit(0)
                self._stream.reach_value(free_from)
            c.memmove(stage.host, piece.ctypes.data, piece.nbytes)
            copy = BufferCopy(0, start + at, piece.nbytes)
            self._stream.record("vkCmdCopyBuffer", stage.buffer, target.buffer, 1, c.byref(copy))
            self._stages[self._next] = stage, self._stream.coming
            self._next = 1 - self._next

    def download(self, address: int, out: npt.NDArray[Any]) -> None:
        """Queue a download. `settle` copies it to the array once it is done."""
        if out.nbytes == 0:
            return
        fitting = [block for block in self._returns if block.size >= out.nbytes]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self._returns.remove(block)
        else:
            block = self._block(1 << max(16, (out.nbytes - 1).bit_length()), True)
        with self._shared.lock:
            source, at = self._shared.memory.find(address)
        copy = BufferCopy(at, 0, out.nbytes)
        try:
            self._stream.record("vkCmdCopyBuffer", source.buffer, block.buffer, 1, c.byref(copy))
            self._stream.show_host()
        except BaseException:
            self._returns.append(block)  # freed by `close`
            raise
        self._coming.append((self._stream.coming, block, out))

    def settle(self) -> None:
        """Copy finished downloads to their arrays."""
        while self._coming and self._stream.is_done(self._coming[0][0]):
            _, block, out = self._coming.popleft()
            c.memmove(out.ctypes.data, block.host, out.nbytes)
            self._returns.append(block)

    def _block(self, size: int, is_read: bool) -> Block:
        with self._shared.lock:
            return self._shared.memory.block(size, is_host=True, is_read=is_read)

    def close(self) -> None:
        """Free the buffers. The stream must be idle."""
        for block in (*(stage for stage, _ in self._stages), *self._returns, *(one[1] for one in self._coming)):
            self._shared.memory.drop(block)
        self._stages, self._returns = [], []
        self._coming.clear()
