"""MetalStaging: uploads and downloads through unified memory, in stream order."""

from __future__ import annotations

import ctypes as c
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from woolly.runtime.gpu.memory import Block
from woolly.runtime.metal.context import MetalContext
from woolly.runtime.metal.stream import MetalStream

_STAGE = 8 << 20  # bytes of each of two staging buffers: one is copied while the other is filled
_UNIT = 4  # alignment of offsets and sizes of GPU copies


class MetalStaging:
    """Uploads and downloads of one stream."""

    def __init__(self, shared: MetalContext, stream: MetalStream) -> None:
        self._shared, self._stream = shared, stream
        self._stages: list[Block] = []
        self._free_from = [0, 0]  # timeline values at which each stage is free
        self._now = self._used = 0  # stage being filled, and its used bytes
        self._returns: list[Block] = []  # free readback buffers
        self._coming: deque[tuple[int, Block, int, npt.NDArray[Any]]] = deque()

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Write directly to newly allocated memory, which no queued work uses."""
        block, at = self._find(address)
        c.memmove(block.host + at, data.ctypes.data, data.nbytes)

    def upload(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        """Queue an upload. The array may change after the call."""
        block, at = self._find(address)
        is_odd = at % _UNIT != 0 or data.nbytes % _UNIT != 0
        if is_odd:
            self._stream.submit(0)
            self._stream.wait()
        if is_odd or self._stream.is_idle:
            c.memmove(block.host + at, data.ctypes.data, data.nbytes)
            return
        for first in range(0, data.nbytes, _STAGE):
            piece = data[first : first + _STAGE]
            stage, place = self._room(piece.nbytes)
            c.memmove(stage.host + place, piece.ctypes.data, piece.nbytes)
            self._stream.copy(stage, place, block, at + first, piece.nbytes)
            self._free_from[self._now] = self._stream.coming

    def _room(self, n_bytes: int) -> tuple[Block, int]:
        """Reserve space in a staging buffer. Return the buffer and the offset."""
        while len(self._stages) < 2:
            self._stages.append(self._block(_STAGE))
        if self._used + n_bytes > _STAGE:
            self._now, self._used = 1 - self._now, 0
            if not self._stream.is_done(self._free_from[self._now]):
                self._stream.submit(0)
                self._stream.reach_value(self._free_from[self._now])
        place, self._used = self._used, self._used + n_bytes
        return self._stages[self._now], place

    def download(self, address: int, out: npt.NDArray[Any]) -> None:
        """Queue a download. `settle` copies it to the array once it is done."""
        if out.nbytes == 0:
            return
        source, at = self._find(address)
        first = at // _UNIT * _UNIT
        n_bytes = -(-(at + out.nbytes) // _UNIT) * _UNIT - first
        fitting = [block for block in self._returns if block.size >= n_bytes]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            self._returns.remove(block)
        else:
            block = self._block(1 << max(16, (n_bytes - 1).bit_length()))
        try:
            self._stream.copy(source, first, block, 0, n_bytes)
        except BaseException:
            self._returns.append(block)  # freed by `close`
            raise
        self._coming.append((self._stream.coming, block, at - first, out))

    def settle(self) -> None:
        """Copy finished downloads to their arrays."""
        while self._coming and self._stream.is_done(self._coming[0][0]):
            _, block, at, out = self._coming.popleft()
            c.memmove(out.ctypes.data, block.host + at, out.nbytes)
            self._returns.append(block)

    def _find(self, address: int) -> tuple[Block, int]:
        with self._shared.lock:
            return self._shared.memory.find(address)

    def _block(self, size: int) -> Block:
        with self._shared.lock:
            return self._shared.memory.make(size)

    def close(self) -> None:
        """Free the buffers. The stream must be idle."""
        for block in (*self._stages, *self._returns, *(one[1] for one in self._coming)):
            self._shared.memory.drop(block)
        self._stages, self._returns = [], []
        self._coming.clear()
