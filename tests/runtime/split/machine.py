"""A machine with GPUs of little memory, which are emulated."""

from __future__ import annotations

import gc
from dataclasses import replace

from tests.runtime.cuda.emulated import EmulatedDevice
from woolly.errors import RequestError
from woolly.models import trace
from woolly.runtime import BACKENDS, Options, get_backend, plan_placement
from woolly.runtime.cuda import CudaBackend
from woolly.runtime.split.placement_units import Costs, atoms_of

OPTIONS = Options(threads=1, max_rows=64, cache_tokens=256)


class Small(EmulatedDevice):
    """A GPU with little memory, which refuses more as a real one does."""

    def __init__(self, n_bytes):
        super().__init__()
        self.n_bytes = n_bytes

    def memory(self):
        return self.n_bytes - self._taken(), self.n_bytes

    def allocate(self, n_bytes):
        if n_bytes > self.memory()[0]:
            raise RequestError("the GPU has too little free memory", code="device_memory")
        return super().allocate(n_bytes)


class Machine:
    """A model, and GPUs that have room for some of it."""

    def __init__(self, file, monkeypatch):
        self.file, self.plan = file, trace(file)
        self.atoms, self.layers = atoms_of(self.plan)
        self.costs = self.counted(OPTIONS)
        self.sizes, self.opened = [], []
        monkeypatch.setitem(BACKENDS, "cuda", lambda: CudaBackend(self.open, lambda: "sm_80"))

    def open(self, number=0):
        if number >= len(self.sizes):
            raise RequestError(f"device is 'cuda:{number}', and this machine has {len(self.sizes)} NVIDIA GPUs")
        self.opened.append(Small(self.sizes[number]))
        return self.opened[-1]

    def counted(self, options):
        """Memory estimate of the plan with these options."""
        return Costs(EmulatedDevice(), self.plan, self.atoms, self.file.tensors, options)

    def room_for(self, wanted, costs=None):
        """Bytes for the atoms of which `wanted` is true."""
        return (costs or self.costs).total([atom for atom in self.atoms if wanted(atom)])

    def compile(self, backend="auto", **options):
        return get_backend(backend).compile(self.plan, self.file.tensors, replace(OPTIONS, **options))

    def place(self, **options):
        return plan_placement(self.plan, self.file.tensors, replace(OPTIONS, **options))

    def is_closed(self):
        """True if all GPUs were released."""
        gc.collect()
        return not any(device._sizes for device in self.opened)
