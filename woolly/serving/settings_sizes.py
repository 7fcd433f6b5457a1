"""Sizes: settings that are given as text such as 16MiB, in bytes."""

from __future__ import annotations

__all__ = ["Sizes"]


class Sizes:
    """The part of Settings that counts bytes."""

    max_files: str
    max_body: str
    max_bodies: str
    max_session_size: str

    @property
    def max_files_bytes(self) -> int:
        """Returns the most bytes of one client's files."""
        return _bytes("max_files", self.max_files)

    @property
    def max_body_bytes(self) -> int:
        """Returns the largest body in bytes."""
        return _bytes("max_body", self.max_body)

    @property
    def max_bodies_bytes(self) -> int:
        """Returns the most bytes of all bodies together."""
        return _bytes("max_bodies", self.max_bodies)

    @property
    def max_session_bytes(self) -> int:
        """Returns the most bytes of one session's messages."""
        return _bytes("max_session_size", self.max_session_size)


def _bytes(name: str, value: str) -> int:
    from woolly.runtime import parse_size  # imported late: --help does without NumPy

    return parse_size(name, value) or 0
