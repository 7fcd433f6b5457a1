"""The CUDA backend: kernels of native/cuda, launched through the driver."""

from woolly.runtime.cuda.program import CudaBackend, CudaProgram
from woolly.runtime.gpu.state import CudaState

__all__ = ["CudaBackend", "CudaProgram", "CudaState"]
