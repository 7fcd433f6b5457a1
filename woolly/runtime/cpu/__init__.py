"""The native backend."""

from woolly.runtime.cpu.program import CpuBackend, CpuProgram, kernel_level
from woolly.runtime.cpu.state import CpuState

__all__ = ["CpuBackend", "CpuProgram", "CpuState", "kernel_level"]
