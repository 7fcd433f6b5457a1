"""Table of backends. Each backend has a folder here and an entry in the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from woolly.errors import DeviceError, RequestError, UnsupportedError
from woolly.runtime.devices import GPU_KINDS, is_gpu_backend
from woolly.runtime.gpu.backend import GpuBackend

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.options import Options
    from woolly.runtime.program import Backend, Program
    from woolly.runtime.split import Placement
    from woolly.runtime.stage_addresses import Stages

log = logging.getLogger("woolly.runtime")


def _made(file: str, name: str) -> Callable[[], Backend]:
    """Return a factory of a backend that imports its package lazily."""

    def make() -> Backend:
        backend: Backend = getattr(import_module(f"woolly.runtime.{file}"), name)()
        return backend

    return make


# Fastest first: "auto" selects the first backend that this machine can run.
BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "cuda": _made("cuda.backend", "CudaBackend"),
    "metal": _made("metal.backend", "MetalBackend"),
    "vulkan": _made("vulkan.backend", "VulkanBackend"),
    "cpu": _made("cpu.program", "CpuBackend"),
    "reference": _made("reference", "ReferenceBackend"),
}


class Fallback:
    """First backend that can compile a plan: a GPU may lack kernels or memory."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        """The first backend must be available. The others are checked when they are needed, since drivers are slow."""
        self._backends = backends
        self.name = backends[0].name
        self.is_gpu = backends[0].is_gpu

    @property
    def levels(self) -> Sequence[str]:
        """Levels of the first backend."""
        return self._backends[0].levels

    def is_available(self) -> bool:
        """True, because the first backend is always available."""
        return True

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """Compile with the first backend that supports the plan, or raise the last error."""
        named = options.device is not None and options.device.strip().lower() != "auto"
        insists = named or options.wants_gpu
        if len(self._backends) == 1 and options.wants_gpu:
            # Placement changes no results, so a command line shared by several machines works here, too.
            log.warning(
                "gpu_layers=%s (-ngl %s) has no effect: no GPU is usable, so the CPU runs all layers;"
                " `woolly show MODEL` shows the reason",
                options.gpu_layers,
                options.gpu_layers,
            )
            options = replace(options, gpu_layers=None)
        for backend in self._backends[:-1]:
            if backend is not self._backends[0] and not backend.is_available():
                continue
            try:
                return backend.compile(plan, tensors, options)
            except (UnsupportedError, DeviceError, RequestError) as error:
                if insists:
                    raise
                log.warning("%s is not used: %s", backend.name, error)
        return self._backends[-1].compile(plan, tensors, options)


def get_backend(name: str = "auto", stages: Stages | None = None) -> Backend:
    """Return a backend by name; "auto" selects the fastest available backend. The `stages` run it if given."""
    if stages is not None:
        from woolly.runtime.pipeline import PipelineBackend  # rarely needed, and imports sockets

        # Stages run on other machines, so the local hardware does not matter.
        return PipelineBackend("cpu" if name == "auto" else get_backend(name).name, stages)
    if name == "auto":
        backends: list[Backend] = []
        for one in BACKENDS:
            backend = BACKENDS[one]()
            if backends or backend.is_available():
                backends.append(_with_cpu(backend, insists=False))
                # The CPU backend supports every plan, so later entries are used only by name.
                if not backend.is_gpu:
                    break
        return Fallback(backends)
    if name not in BACKENDS:
        raise RequestError(
            f"backend {name!r} is unknown; choose auto or one of: {', '.join(sorted(BACKENDS))}", field="backend"
        )
    return _with_cpu(BACKENDS[name](), insists=True)


def find_gpu_backend(name: str) -> GpuBackend | None:
    """Return the GPU backend of that name, or the first usable one for "auto".

    Return None for other names, or if no GPU is usable. The backend does not split plans into layers.
    """
    kinds = GPU_KINDS if name == "auto" else (name,) if is_gpu_backend(name) else ()
    backends = (BACKENDS[kind]() for kind in kinds)
    return next((one for one in backends if isinstance(one, GpuBackend) and one.is_available()), None)


def plan_placement(plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Placement:
    """Return the placement of a plan's layers on GPUs, for the memory that is free now.

    `Options.gpu_layers` None counts as "auto". Raises DeviceError if there is no GPU, UnsupportedError if it cannot run
    the plan, RequestError if the requested layers do not fit.
    """
    from woolly.runtime.split import SplitBackend

    backends = [BACKENDS[name]() for name in GPU_KINDS]
    backend = next((one for one in backends if one.is_available()), backends[0])
    assert isinstance(backend, GpuBackend)
    return SplitBackend(backend, insists=False).place(plan, tensors, options)


def _with_cpu(backend: Backend, insists: bool) -> Backend:
    """Return the backend, extended to run layers on the CPU if it is a GPU backend; `insists`: only as requested."""
    if not isinstance(backend, GpuBackend):
        return backend
    from woolly.runtime.split import SplitBackend

    return SplitBackend(backend, insists)
