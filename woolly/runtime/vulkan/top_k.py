"""KeyRanker: top-k of logits with the kernels of native/gpu/rows/rank.slang."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from woolly.runtime.gpu.device import Address, Argument, Device
from woolly.runtime.gpu.top_k import Head
from woolly.runtime.top_logits import MAX_RANKED

# Sizes of native/gpu/rows/rank.slang.
_SIZE, _THREADS, _FEED_THREADS = 1024, 256, 64
_KEY_BYTES = 8
_ROWS = 32  # rows per launch: 16 MB of candidates for a vocabulary of 256k
# Supported k: sorting takes the same time for all values up to each size.
_SIZES = (1, 64, MAX_RANKED)
# Host result buffers: one being read, one in flight, and possibly a dropped run between them.
_SIDES = 3
_NONE = Address(0)


class KeyRanker:
    """Multi-level top-k of a value of `width` columns: each group reduces 1,024 logits to k candidates."""

    def __init__(self, device: Device, batch: Address, logits: Address, width: int, max_rows: int) -> None:
        self._device, self._batch, self._logits, self._width = device, batch, logits, width
        max_ranked, rows = min(MAX_RANKED, width), min(max_rows, _ROWS)
        n_keys = rows * -(-width // _SIZE) * max_ranked
        self._keys = [
            device.allocate(n * _KEY_BYTES) for n in (n_keys, rows * -(-n_keys // rows // _SIZE) * max_ranked)
        ]
        self._out = device.allocate(max_rows * Head(max_ranked).itemsize)
        self._hosts = [device.pinned(1 << 16) for _ in range(_SIDES)]
        self._side = 0
        self._n = 0  # k of the last call
        self._feeds: dict[tuple[Address, int], tuple[Argument, ...]] = {}
        self._args: dict[tuple[int, int], list[tuple[int, tuple[Argument, ...]]]] = {}

    def queue(self, n: int, n_output: int) -> npt.NDArray[np.void]:
        """Queue the top-n of each output row. The result is valid after the device is done, until two calls later."""
        self._n = n = min(next(size for size in _SIZES if size >= n), self._width)
        for first in range(0, n_output, _ROWS):
            kernel = "rank_logits"
            for n_groups, args in self._levels(first, n):
                self._device.launch(kernel, (n_groups, min(n_output - first, _ROWS)), _THREADS, 0, args)
                kernel = "rank_keys"
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

    def _levels(self, first: int, n: int) -> list[tuple[int, tuple[Argument, ...]]]:
        """Return group count and arguments of each launch: cached tuples, because a device caches them by tuple."""
        if (first, n) not in self._args:
            levels, n_in, source = list[tuple[int, tuple[Argument, ...]]](), self._width, _NONE
            while not levels or levels[-1][0] > 1:
                n_groups, to = -(-n_in // _SIZE), self._keys[len(levels) % 2]
                heads = self._out if n_groups == 1 else _NONE
                args = (self._batch, self._logits, source, to, heads, self._width, n_in, n, first)
                levels.append((n_groups, args))
                n_in, source = n_groups * n, to
            self._args[first, n] = levels
        return self._args[first, n]
