"""Ranker: top-k kernels for logits, and the layout of their results."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from woolly.runtime.gpu.device import Address, Argument, Device
from woolly.runtime.top_logits import MAX_RANKED

# Block sizes of native/cuda/rows/rank.cu.
_PART, _PART_THREADS, _ROW_THREADS, _FEED_THREADS = 4096, 512, 1024, 64
_PART_BYTES = 16
_KEY_BYTES = 8
# Maximum rows ranked per launch, which limits the memory between the two kernels.
_ROWS = 128
# Supported k: sorting takes the same time for all values up to each size.
_SIZES = (1, 64, MAX_RANKED)
# Host result buffers: one being read, one in flight, and possibly a dropped run between them.
_SIDES = 3


@lru_cache
def Head(n: int) -> np.dtype[np.void]:  # noqa: N802 - returns a type
    """Return the dtype of a result row: struct Head, then ids and logits."""
    return np.dtype(
        [
            ("sum", np.float64),
            ("is_sound", np.int32),
            ("token", np.int32),
            ("ids", np.int32, n),
            ("logits", np.float32, n),
        ]
    )


class Ranker:
    """Top-k of a value of `width` columns, for each output row."""

    def __init__(self, device: Device, batch: Address, logits: Address, width: int, max_rows: int) -> None:
        self._device = device
        self._batch = batch
        self._logits = logits
        self._width = width
        self._n_parts = -(-width // _PART)
        max_ranked = min(MAX_RANKED, width)
        rows = min(max_rows, _ROWS)
        self._parts = device.allocate(rows * self._n_parts * _PART_BYTES)
        self._keys = device.allocate(rows * self._n_parts * max_ranked * _KEY_BYTES)
        self._out = device.allocate(max_rows * Head(max_ranked).itemsize)
        self._hosts = [device.pinned(1 << 16) for _ in range(_SIDES)]
        self._side = 0
        self._n = 0  # k of the last call
        self._feeds: dict[tuple[Address, int], tuple[Argument, ...]] = {}
        self._args: dict[tuple[int, int], tuple[tuple[Argument, ...], tuple[Argument, ...]]] = {}

    def queue(self, n: int, n_output: int) -> npt.NDArray[np.void]:
        """Queue the top-n of each output row. The result is valid after the device is done, until two calls later."""
        self._n = n = min(next(size for size in _SIZES if size >= n), self._width)
        n_keys = self._n_parts * n
        # Shared memory for the keys of a block, as in rank_rows.
        most = n * -(-n_keys // _ROW_THREADS)
        shared = _KEY_BYTES * max(1 << (most - 1).bit_length(), self._n_parts)
        for first in range(0, n_output, _ROWS):
            rows = min(n_output - first, _ROWS)
            of_parts, of_rows = self._arguments(first, n)
            self._device.launch("rank_parts", (rows, self._n_parts), _PART_THREADS, 0, of_parts)
            self._device.launch("rank_rows", (rows,), _ROW_THREADS, shared, of_rows)
        n_bytes = n_output * Head(n).itemsize
        self._side = side = (self._side + 1) % _SIDES
        if n_bytes > len(self._hosts[side]):
            self._hosts[side] = self._device.pinned(2 * n_bytes)
        heads = self._hosts[side][:n_bytes]
        if n_output:
            self._device.download(self._out, heads)
        return heads.view(Head(n))

    def feed(self, picks: Address, n_rows: int) -> None:
        """Write tokens picked from the last ranking into the batch that was uploaded after it."""
        if (picks, self._n) not in self._feeds:
            self._feeds[picks, self._n] = (self._batch, self._out, picks, self._n)
        self._device.launch("rank_feed", (n_rows,), _FEED_THREADS, 0, self._feeds[picks, self._n])

    def _arguments(self, first: int, n: int) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
        """Return the arguments of both kernels as cached tuples, because a device caches packed arguments by tuple."""
        if (first, n) not in self._args:
            tail = (self._width, first, n)
            args = (self._batch, self._logits, self._keys, self._parts)
            self._args[first, n] = (*args, *tail), (*args, self._out, *tail, self._n_parts)
        return self._args[first, n]
