"""The table of backends. A backend is a folder here and a line in the table."""

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
    from woolly.runtime.stages import Stages

log = logging.getLogger("woolly.runtime")


def _made(file: str, name: str) -> Callable[[], Backend]:
    """Return a factory of a backend that imports its package lazily."""

    def make() -> Backend:
        backend: Backend = getattr(import_module(f"woolly.runtime.{file}"), name)()
        return backend

    return make


# Fastest first: "auto" takes the first that this machine can run.
BACKENDS: Mapping[str, Callable[[], Backend]] = {
    "cuda": _made("cuda.backend", "CudaBackend"),
    "metal": _made("metal.backend", "MetalBackend"),
    "vulkan": _made("vulkan.backend", "VulkanBackend"),
    "cpu": _made("cpu.program", "CpuBackend"),
    "reference": _made("reference", "ReferenceBackend"),
}


class Fallback:
    """The first backend that can compile a plan: a GPU may lack kernels or memory."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        """The first is available; whether the others are is asked when a plan comes to them: drivers take a while."""
        self._backends = backends
        self.name = backends[0].name
        self.is_gpu = backends[0].is_gpu

    @property
    def levels(self) -> Sequence[str]:
        """Levels of the first backend."""
        return self._backends[0].levels

    def is_available(self) -> bool:
        """True: the first backend is available."""
        return True

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Program:
        """Compile with the first backend that supports the plan; raise the error of the last one."""
        named = options.device is not None and options.device.strip().lower() != "auto"
        insists = named or options.wants_gpu
        if len(self._backends) == 1 and options.wants_gpu:
            # Where layers are changes no answer: a command line that serves all machines works on this one, too.
            log.warning(
                "gpu_layers=%s (-ngl %s) has no effect: no GPU can be used here, and the CPU has all layers;"
                " `woolly show MODEL` says why",
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


def choose(name: str = "auto", stages: Stages | None = None) -> Backend:
    """The backend of that name; "auto": the fastest that this machine can run. With stages, they run it there."""
    if stages is not None:
        from woolly.runtime.pipeline import PipelineBackend  # sockets and all: few need it

        # Stages run on other machines, so the hardware of this one does not matter.
        return PipelineBackend("cpu" if name == "auto" else choose(name).name, stages)
    if name == "auto":
        backends: list[Backend] = []
        for one in BACKENDS:
            backend = BACKENDS[one]()
            if backends or backend.is_available():
                backends.append(_with_cpu(backend, insists=False))
                # The CPU backend takes every plan, so later entries are used only by name.
                if not backend.is_gpu:
                    break
        return Fallback(backends)
    if name not in BACKENDS:
        raise RequestError(
            f"backend {name!r} is unknown; choose auto or one of: {', '.join(sorted(BACKENDS))}", field="backend"
        )
    return _with_cpu(BACKENDS[name](), insists=True)


def find_gpu_backend(name: str) -> GpuBackend | None:
    """The backend of GPUs that a name asks for, or the first for "auto", for plans that are not cut in layers.

    None for other names, or if no GPU is usable.
    """
    kinds = GPU_KINDS if name == "auto" else (name,) if is_gpu_backend(name) else ()
    backends = (BACKENDS[kind]() for kind in kinds)
    return next((one for one in backends if isinstance(one, GpuBackend) and one.is_available()), None)


def plan_placement(plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> Placement:
    """Return the placement of a plan's layers on GPUs, with the memory that is free now.

    `Options.gpu_layers` None counts as "auto". DeviceError if there is no GPU, UnsupportedError if it cannot run the
    plan, RequestError if what is asked for does not fit.
    """
    from woolly.runtime.split import SplitBackend

    backends = [BACKENDS[name]() for name in GPU_KINDS]
    backend = next((one for one in backends if one.is_available()), backends[0])
    assert isinstance(backend, GpuBackend)
    return SplitBackend(backend, insists=False).place(plan, tensors, options)


def _with_cpu(backend: Backend, insists: bool) -> Backend:
    """The backend; that of GPUs leaves layers to the CPU, by itself unless it `insists`."""
    if not isinstance(backend, GpuBackend):
        return backend
    from woolly.runtime.split import SplitBackend

    return SplitBackend(backend, insists)
