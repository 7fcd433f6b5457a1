"""PushedArguments: the arguments of launches as drivers that take command buffers get them.

A launch pushes its arguments, at most 128 bytes. Behind an address, each kernel would first wait for memory: a token of
an 8B model took 4.6 ms in place of 4.2 on an H200. What few launches have lies in structs on the device.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from woolly.runtime.gpu.device import Address, Argument, Number

MAX_PUSH_BYTES = 128  # bytes of arguments, which every driver of Vulkan takes
_ROOM = 1 << 14  # bytes of structs that are allocated at once: more than most models have


class PushedArguments:
    """The arguments of one queue, each packed once."""

    def __init__(self, allocate: Callable[[int], Address], write: Callable[[int, npt.NDArray[np.uint8]], None]) -> None:
        self._allocate, self._write = allocate, write
        self._kept: dict[int, tuple[Sequence[Argument], bytes]] = {}  # by the id of their tuple
        self._structs: dict[bytes, Address] = {}  # by their bytes
        self._room: tuple[Address, int] = (Address(0), 0)  # for structs to come
        self.blocks: list[Address] = []  # of structs, which their owner frees

    def of(self, args: Sequence[Argument]) -> tuple[bytes, bool]:
        """What a launch pushes, and whether a struct of it is written now. Kept, because most come again."""
        kept = self._kept.get(id(args))
        if kept is not None and kept[0] is args:
            return kept[1], False
        n_structs = len(self._structs)
        pushed = _packed([self._struct_of(one) if isinstance(one, tuple) else one for one in args])
        assert len(pushed) <= MAX_PUSH_BYTES, f"{len(pushed)} bytes of arguments"
        self._kept[id(args)] = args, pushed
        return pushed, len(self._structs) > n_structs

    def _struct_of(self, numbers: tuple[Number, ...]) -> Address:
        """Where a struct of these numbers is on the device: one for all launches that have the same."""
        packed = _packed(numbers)
        if (found := self._structs.get(packed)) is not None:
            return found
        at, left = self._room
        if left < len(packed):
            at, left = self._allocate(_ROOM), _ROOM
            self.blocks.append(at)
        n_taken = -(-len(packed) // 16) * 16
        self._room = at + n_taken, left - n_taken
        self._write(int(at), np.frombuffer(packed, np.uint8))
        self._structs[packed] = at
        return at


def _packed(numbers: Sequence[Number]) -> bytes:
    """The numbers as the members of a struct lie."""
    words = "".join("Q" if isinstance(n, Address) else "f" if isinstance(n, float) else "i" for n in numbers)
    return struct.pack(f"@{words}0Q", *numbers)
