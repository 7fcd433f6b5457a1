"""The CPU backend: a fused plan handed to C++ once, then one native call per step."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.errors import PlanError, RequestError, UnsupportedError
from woolly.gguf import Tensor
from woolly.plan import Plan, Rope, Step, rope_frequencies
from woolly.plan.passes import barriers, fuse, place
from woolly.runtime.batch import Batch
from woolly.runtime.cancelled import CancelledRun
from woolly.runtime.options import Options
from woolly.runtime.packed import PackedWeights
from woolly.runtime.threads import default_threads
from woolly.runtime.weights import WeightStats

__all__ = ["CpuBackend", "CpuProgram", "CpuState", "kernel_level"]

Float32 = npt.NDArray[np.float32]

# Positions that scratch memory is sized for; it is taken from the system only where it is used.
_MAX_CONTEXT = 1 << 20


def kernel_level(wanted: str | None = None) -> str:
    """The best level that this machine can run, or the one asked for, here or by WOOLLY_ISA."""
    levels = _native.kernel_levels()
    wanted = wanted or os.environ.get("WOOLLY_ISA")
    if not wanted:
        return levels[0]
    if wanted not in levels:
        raise RequestError(f"kernel level {wanted!r} cannot run on this machine; it can run: {', '.join(levels)}")
    return wanted


class CpuState:
    """K and V of every layer in native pages."""

    def __init__(self, plan: Plan, n_pages: int, kv_type: str) -> None:
        self.n_pages = n_pages
        self.native = _native.Cache(kv_type, n_pages, [(layer.n_kv_heads, layer.head_dim) for layer in plan.cache])

    @property
    def n_bytes(self) -> int:
        """Size of all pages, written or not."""
        return self.native.n_bytes


class CpuProgram:
    """A plan compiled for the CPU. One thread at a time may run it; others wait."""

    def __init__(
        self,
        plan: Plan,
        tensors: Mapping[str, Tensor],
        options: Options,
    ) -> None:
        self.plan = plan
        self.fused = fuse(plan)
        self.level = kernel_level(options.level)
        self.threads = default_threads() if options.threads is None else options.threads
        self.max_rows = options.max_rows
        self._kv_type = options.kv_type or "f16"
        self._tensors = tensors
        self._lock = threading.Lock()
        placement = place(self.fused, options.max_rows)
        self.arena_bytes = placement.n_bytes
        try:
            self._native = _native.Program(self.level, self.threads, options.max_rows, placement.n_bytes, _MAX_CONTEXT)
        except MemoryError:
            raise RequestError(
                f"max_rows is {options.max_rows}; so many rows at a time need {placement.n_bytes / 1e9:.0f} GB,"
                " more than the system gives: lower it"
            ) from None
        self._matrices: dict[str, int] = {}
        self._experts: dict[str, list[int]] = {}  # a matrix for each expert
        self._vectors: dict[str, int] = {}
        self._kept: list[object] = []  # arrays that native code points into
        self._values: dict[int, int] = {}
        for value in sorted(placement.offsets):
            shape = self.fused.values[value]
            self._values[value] = self._native.add_value(placement.offsets[value], shape.width, shape.rows == "output")
        for step, wait in zip(self.fused.steps, barriers(self.fused, placement), strict=True):
            self._add_step(step, wait)
        self._native.finish()
        self._rope, self._divisors = self._find_rope()
        self._cosines = self._sines = np.zeros((0, 1), np.float32)
        self._packed = PackedWeights(self._native, tensors, self._uses(), options.weight_memory)

    def new_state(self, n_pages: int) -> CpuState:
        """An empty cache of so many pages."""
        return CpuState(self.plan, n_pages, self._kv_type)

    def prepare(self) -> None:
        """Starts to pack weights in the background, in order of use; the first run takes over what is left."""
        with self._lock:
            self._native.prepare()

    def close(self) -> None:
        """Ends the work in the background."""
        with self._lock:
            self._native.stop_preparing()

    def weight_stats(self) -> WeightStats:
        """What the store of packed weights did so far."""
        return self._packed.stats()

    def run(self, batch: Batch, state: CpuState, first: int = 0, last: int | None = None) -> Float32:
        """Steps `first` to `last` of the fused plan; gives a view of the last value, valid until the next run."""
        last = len(self.fused.steps) if last is None else last
        if not 0 <= first < last <= len(self.fused.steps):
            raise PlanError(f"steps {first} to {last} are not a part of a plan of {len(self.fused.steps)} steps")
        with self._lock:
            # Of a position beyond the limit no table is made; native code refuses it.
            self._extend_turns(min(int(batch.positions.max()) + 1, _MAX_CONTEXT))
            done = self._native.run(
                state.native,
                batch.tokens,
                batch.positions,
                batch.offsets,
                batch.pages,
                batch.output_rows,
                self._cosines,
                self._sines,
                first,
                last,
            )
            self._packed.ran(first, last)
        if not done:
            raise CancelledRun("the computation was cancelled")
        value = self.fused.steps[last - 1].outputs[-1]
        rows = len(batch.output_rows) if self.fused.values[value].rows == "output" else batch.n_rows
        return self._native.value(self._values[value], rows)

    def cancel(self) -> None:
        """Stops a run that is under way, at its next barrier; may be called from any thread."""
        self._native.cancel()

    def profile(self, on: bool) -> None:
        """Switches the taking of times per step on or off."""
        self._native.set_profiling(on)

    def take_times(self) -> list[int]:
        """Nanoseconds of each fused step since the last call."""
        return self._native.take_times()

    def step_bytes(self, step: Step) -> int:
        """Bytes of weights that a step reads."""
        return sum(self._tensors[weight.name].n_bytes for weight in step.weights)

    def _add_step(self, step: Step, wait: bool) -> None:
        options: dict[str, object] = {"barrier_before": wait}
        if step.op == "embed":
            options["matrices"] = [self._matrix(step.weights[0].name)]
        elif step.op == "rms_norm":
            options |= {"norm": self._vector(step.weights[0].name), "eps": step.number("eps")}
        elif step.op == "linears":
            options |= self._linears(step)
        elif step.op == "moe":
            options |= self._moe(step)
        elif step.op == "store":
            options |= self._store(step)
        elif step.op == "attend":
            options |= {"factor": step.number("scale"), "softcap": step.number("softcap")}
            options |= {name: step.integer(name) for name in ("layer", "head_dim", "window")}
        elif step.op == "scale":
            options["factor"] = step.number("factor")
        inputs, outputs = ([self._values[v] for v in values] for values in (step.inputs, step.outputs))
        try:
            self._native.add_step(step.op, inputs, outputs, **options)
        except ValueError as error:
            raise UnsupportedError(f"{step.source}: {error}") from None

    def _linears(self, step: Step) -> dict[str, object]:
        matrices: list[int] = []
        biases: list[int] = []
        norm = -1
        for weight, role in zip(step.weights, step.text("roles").split(), strict=True):
            if role == "norm":
                norm = self._vector(weight.name)
            elif role == "weight":
                matrices.append(self._matrix(weight.name))
                biases.append(-1)
            else:
                biases[-1] = self._vector(weight.name)
        return {
            "matrices": matrices,
            "biases": biases,
            "norm": norm,
            "eps": step.number("eps"),
            "factor": step.number("scale"),
            "epilogue": step.text("epilogue"),
        }

    def _moe(self, step: Step) -> dict[str, object]:
        roles = dict(zip(step.text("roles").split(), step.weights, strict=True))
        experts = [index for role in ("gate", "up", "down") for index in self._matrices_of(roles[role].name)]
        return {
            "matrices": [self._matrix(roles["router"].name), *experts],
            "biases": [self._vector(roles["bias"].name) if "bias" in roles else -1],
            "norm": self._vector(roles["norm"].name) if "norm" in roles else -1,
            "eps": step.number("eps"),
            "factor": step.number("scale"),
            "epilogue": step.text("epilogue"),
            "n_experts": roles["router"].shape[0],
            "n_used": step.integer("n_used"),
            "sigmoid": step.text("scoring") == "sigmoid",
            "normalize": bool(step.integer("normalize")),
            "weights_scale": step.number("weights_scale"),
        }

    def _store(self, step: Step) -> dict[str, object]:
        head_dim, rope = step.integer("head_dim"), step.rope()
        block = 32 if self._kv_type == "q8_0" else 16
        if head_dim % block != 0 or head_dim > 512:
            raise UnsupportedError(
                f"heads of {head_dim} do not fit the {self._kv_type} cache of the cpu backend, which takes multiples"
                f" of {block} up to 512; use backend='reference'"
            )
        roles = dict(zip(step.text("roles").split(), step.weights, strict=True))
        return {
            "norm": self._vector(roles["q_norm"].name) if "q_norm" in roles else -1,
            "k_norm": self._vector(roles["k_norm"].name) if "k_norm" in roles else -1,
            "eps": step.number("eps"),
            "adjacent": rope is not None and rope.style == "adjacent",
            "n_rot": 0 if rope is None else rope.n_rot,
            "layer": step.integer("layer"),
            "head_dim": head_dim,
        }

    def _matrix(self, name: str) -> int:
        if name not in self._matrices:
            self._matrices[name] = self._add_matrix(name, self._tensors[name].data)
        return self._matrices[name]

    def _matrices_of(self, name: str) -> list[int]:
        """The matrices of a tensor of experts.

        Each is one of its own: panels then never span two, whatever their rows, and pages of the file are given back
        expert by expert, where one that no row goes to would keep those of all.
        """
        if name not in self._experts:
            self._experts[name] = [self._add_matrix(name, data) for data in self._tensors[name].data]
        return self._experts[name]

    def _add_matrix(self, name: str, data: npt.NDArray[np.uint8]) -> int:
        tensor = self._tensors[name]
        rows, columns = tensor.shape[-2:]
        source = data.reshape(-1)
        self._kept.append(source)
        try:
            return self._native.add_matrix(int(tensor.type), rows, columns, source, isinstance(tensor, Tensor))
        except ValueError as error:
            raise UnsupportedError(
                f"tensor {name!r} is {tensor.type.name}, which is not supported yet: {error}"
            ) from None

    def _vector(self, name: str) -> int:
        if name not in self._vectors:
            array = self._tensors[name].dequantize()
            self._kept.append(array)
            self._vectors[name] = self._native.add_vector(array)
        return self._vectors[name]

    def _uses(self) -> list[tuple[int, str, list[int]]]:
        """(step, tensor, its matrices) of every weight that is computed with in panels, in order of use."""
        return [
            (index, weight.name, self._experts.get(weight.name) or [self._matrices[weight.name]])
            for index, step in enumerate(self.fused.steps)
            for weight in step.matrices
        ]

    def _find_rope(self) -> tuple[Rope | None, Float32 | None]:
        """The one rotary embedding of the model; the tables hold no second."""
        found: dict[Rope, Float32 | None] = {}
        for step in self.fused.steps:
            if step.op == "store" and (rope := step.rope()) is not None:
                divisors = step.by_role("divisors")
                found[rope] = self._tensors[divisors[0].name].dequantize() if divisors else None
        if len(found) > 1:
            raise UnsupportedError("models with several rotary embeddings are not supported yet by the cpu backend")
        return next(iter(found.items())) if found else (None, None)

    def _extend_turns(self, n: int) -> None:
        """Cos and sin of all positions below n, grown by doubling."""
        if n <= len(self._cosines):
            return
        n = max(n, 2 * len(self._cosines), 256)
        if self._rope is None:
            self._cosines = self._sines = np.zeros((n, 1), np.float32)
            return
        frequencies, magnitude = rope_frequencies(self._rope, self._divisors)
        angles = np.arange(n, dtype=np.float64)[:, None] * frequencies
        self._cosines = (np.cos(angles) * magnitude).astype(np.float32)
        self._sines = (np.sin(angles) * magnitude).astype(np.float32)


class CpuBackend:
    """C++ kernels, chosen for this CPU."""

    name = "cpu"

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> CpuProgram:
        """Nothing is packed yet: weights are, panel by panel, when a step first needs them."""
        return CpuProgram(plan, tensors, options)
