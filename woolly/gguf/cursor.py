"""Bounds-checked cursor over the header of a file."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from woolly import _native
from woolly.errors import GGUFError

if TYPE_CHECKING:
    from woolly.gguf.mapped_file import FileMap

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def quote(text: str) -> str:
    """Return a name for an error message: quoted, printable, at most 80 characters."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")


class Cursor:
    """Reads consecutive little-endian values. Errors name the file and the byte offset."""

    __slots__ = ("_view", "bytes", "map", "n_bytes", "n_elements", "n_inner_arrays", "offset", "owner")

    def __init__(self, file: FileMap) -> None:
        self.map = file
        self.bytes = file.bytes
        self._view = file.bytes.data
        self.n_bytes = file.n_bytes
        self.offset = 0
        self.n_elements = 0  # elements of arrays read so far
        self.n_inner_arrays = 0  # nested arrays read so far
        self.owner = ""  # current key or tensor; only quoted in errors

    def error(self, problem: str, at: int | None = None) -> GGUFError:
        """Return an error at a byte offset (default: the current one)."""
        return GGUFError(f"{self.map.path}: {problem} (at byte {self.offset if at is None else at})")

    def of_owner(self) -> str:
        """Return the name of the current key or tensor, for an error message."""
        return f" of {quote(self.owner)}" if self.owner else ""

    def skip(self, n_bytes: int, what: str) -> int:
        """Step over n bytes and return their offset."""
        start = self.offset
        if n_bytes > self.n_bytes - start:
            raise self.error(
                f"expected {what}{self.of_owner()} of {n_bytes} bytes, but the file ends after {self.n_bytes - start}"
            )
        self.offset = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        value: int = _U32.unpack_from(self._view, self.skip(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        value: int = _U64.unpack_from(self._view, self.skip(8, what))[0]
        return value

    def count(self, min_bytes: int, what: str, most: int | None = None) -> int:
        """Read a 64-bit count of items with at least `min_bytes` bytes each, checked against the rest of the file."""
        at = self.offset
        count = self.u64("the number of " + what)
        room = (self.n_bytes - self.offset) // min_bytes
        if count > room:
            raise self.error(
                f"expected at most {room} {what}{self.of_owner()} in the rest of the file, found {count}:"
                " the file may be truncated; fetch it again",
                at,
            )
        if most is not None and count > most:
            raise self.error(f"expected at most {most} {what}, found {count}", at)
        return count

    def string(self, what: str, longest: int | None = None) -> str:
        """Read a length-prefixed string. Bytes that are not UTF-8 become surrogate escapes."""
        at = self.offset
        length = self.u64("the length of " + what)
        if longest is not None and length > longest:
            raise self.error(f"expected {what} of at most {longest} bytes, found a length of {length}", at)
        start = self.skip(length, what)
        return self.bytes[start : self.offset].tobytes().decode("utf-8", "surrogateescape")

    def skip_strings(self, count: int) -> None:
        """Step over `count` length-prefixed strings."""
        self.offset, n_whole = _native.skip_strings(self.bytes, self.offset, count)
        if n_whole != count:
            found = f"expected string {n_whole} of {count}{self.of_owner()}, but it exceeds the file"
            raise self.error(f"{found}, which may be truncated; fetch it again")
