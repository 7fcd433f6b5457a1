"""CPU backend with native kernels."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.runtime.cpu.program import CpuBackend, CpuProgram, kernel_level
    from woolly.runtime.cpu.state import CpuState

__all__ = ["CpuBackend", "CpuProgram", "CpuState", "kernel_level"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "program": "CpuBackend CpuProgram kernel_level",
        "state": "CpuState",
    },
)
