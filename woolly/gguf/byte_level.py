"""Byte-level vocabularies, which represent each byte by a printable character."""

from __future__ import annotations


def _byte_characters() -> tuple[str, ...]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return tuple(shown[byte] for byte in range(256))


CHARACTER_OF_BYTE = _byte_characters()
