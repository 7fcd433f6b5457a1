"""SPIR-V float execution modes, added to kernels if the GPU supports them."""

from __future__ import annotations

import struct

# Vulkan float control properties for f32, with SPIR-V capability and execution mode: preserve subnormals, preserve
# infinity and NaN, round to nearest even.
CONTROLS = {
    "shaderDenormPreserveFloat32": (4464, 4459),
    "shaderSignedZeroInfNanPreserveFloat32": (4466, 4461),
    "shaderRoundingModeRTEFloat32": (4467, 4462),
}
_HEADER = 5  # words
_CAPABILITY, _ENTRY_POINT, _EXECUTION_MODE = 17, 15, 16
_BITS = 32


def with_modes(code: bytes, controls: frozenset[str]) -> bytes:
    """Return the SPIR-V of a kernel with the execution modes of these controls added."""
    words = list(struct.unpack(f"<{len(code) // 4}I", code))
    at, entry, behind = _HEADER, 0, 0
    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
        at += n
        if op == _ENTRY_POINT:
            entry, behind = words[at - n + 2], at
        elif entry:
            break
    chosen = [CONTROLS[name] for name in sorted(controls)]
    modes = [word for _, mode in chosen for word in (4 << 16 | _EXECUTION_MODE, entry, mode, _BITS)]
    capabilities = [word for capability, _ in chosen for word in (2 << 16 | _CAPABILITY, capability)]
    words = [*words[:_HEADER], *capabilities, *words[_HEADER:behind], *modes, *words[behind:]]
    return struct.pack(f"<{len(words)}I", *words)
