"""CPU backend: hands a fused plan to C++ once, then makes one native call per run."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly import _native
from woolly.errors import PlanError, RequestError
from woolly.machine.cores import default_threads
from woolly.plan.passes import Pass, append, fuse, fusions_for
from woolly.plan.passes.plan_memory import plan_memory
from woolly.runtime.biased_keys import warn_of_biased_keys
from woolly.runtime.cpu.native_steps import NativeSteps
from woolly.runtime.cpu.state import CpuState, check_heads
from woolly.runtime.cpu.weights import PackedWeights
from woolly.runtime.options import Options, kv_type_pair
from woolly.runtime.program import About, CancelledRun, WeightStats, checked_range
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews, check_weights

if TYPE_CHECKING:
    from woolly.gguf import Tensor
    from woolly.plan import Plan
    from woolly.runtime.batch import Batch
    from woolly.runtime.state import State

Float32 = npt.NDArray[np.float32]

# Positions that scratch memory is sized for. The system allocates its pages on first use.
_MAX_CONTEXT = 1 << 20


# CPU features of the lowest non-portable levels of x86-64 and arm64; native/cpu/kernels/isa_requirements.h lists all.
_MIN_FEATURES = ({"avx2", "fma", "f16c"}, {"asimd", "asimddp"})

log = logging.getLogger("woolly.runtime")


def kernel_level(wanted: str | None = None) -> str:
    """Return the kernel level set by the option or WOOLLY_ISA; the default is the best level of this machine."""
    levels = _native.kernel_levels()
    wanted = wanted or os.environ.get("WOOLLY_ISA")
    if not wanted:
        if levels[0] == "scalar" and any(needs <= {*_native.cpu_features()} for needs in _MIN_FEATURES):
            _warn_of_scalar()
        return levels[0]
    if wanted not in levels:
        raise RequestError(f"kernel level {wanted!r} cannot run on this machine; it can run: {', '.join(levels)}")
    return wanted


@functools.cache  # once per process
def _warn_of_scalar() -> None:
    log.warning(
        "this CPU runs the portable kernels, which are several times slower than native ones, because Woolly was"
        " built on another machine: reinstall Woolly here with pip, from a wheel or a checkout"
    )


class CpuProgram:
    """Plan compiled for the CPU. One thread at a time may run it; other threads wait."""

    def __init__(
        self, plan: Plan, tensors: Mapping[str, Tensor], options: Options, passes: Sequence[Pass] | None = None
    ) -> None:
        """`passes`: fusion passes to apply. With fewer passes, more intermediate values are computed."""
        self.plan = plan
        # With bidirectional attention nothing is cached between runs, so f32 needs little memory.
        self.kv_type = options.kv_type or ("f16" if plan.is_causal else "f32")
        passes = fusions_for(kv_type_pair(self.kv_type)[0]) if passes is None else passes
        warn_of_biased_keys(plan, tensors, self.kv_type, centers=True)
        self.running_plan = fuse(plan, passes)
        level = kernel_level(options.level)
        threads = default_threads() if options.threads is None else options.threads
        self.max_rows = options.rows()
        check_heads(plan)
        self._lock = threading.Lock()
        draft = None if plan.draft is None else fuse(plan.draft, passes)
        self._all = self.running_plan if draft is None else append(self.running_plan, draft)
        layout = plan_memory(self._all, self.max_rows)
        self.about = About("cpu", level, threads, layout.n_bytes, self.kv_type)
        try:
            self._native = _native.Program(level, threads, self.max_rows, layout.n_bytes, _MAX_CONTEXT)
        except MemoryError:
            raise RequestError(
                f"max_rows is {self.max_rows}; that many rows need {layout.n_bytes / 1e9:,.2f} GB,"
                " more than is available: lower it, or free memory"
            ) from None
        views = WeightViews(tensors)
        check_weights(self._all, views)
        self._rope_tables = RopeTables(self._all, views)
        self._rope_rows: tuple[Batch, tuple[Float32, Float32, npt.NDArray[np.int32] | None]] | None = None
        self._steps = NativeSteps(self._native, self._all, layout, views, self._rope_tables)
        self._native.finish()
        self._packed = PackedWeights(self._native, views, self._steps.uses(), options.weight_memory)
        self.draft = None if plan.draft is None or draft is None else CpuDraft(self, plan.draft, draft)

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages: Sequence[int] = ()) -> CpuState:
        """Return an empty cache of `n_pages` pages, `window_pages` pages per window, and `n_slots` slots."""
        return CpuState(self.plan, n_pages, self.kv_type, n_slots, window_pages)

    def load_weights(self) -> None:
        """Start packing weights in the background, in order of use. The first run packs the rest."""
        with self._lock:
            self._native.prepare()

    def close(self) -> None:
        """Stop background work."""
        with self._lock:
            self._native.stop_preparing()

    def weight_stats(self) -> WeightStats:
        """Return hits and misses of the packed weights so far."""
        return self._packed.stats()

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps of the fused plan and return a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        return self.compute(batch, state, first, last)

    def run_part(self, batch: Batch, state: State, step: int, first_row: int, last_row: int) -> Float32:
        """Compute a range of rows of one step. See `SplitsRows`."""
        first, last = checked_range(step, step + 1, len(self.running_plan.steps))
        return self.compute(batch, state, first, last, (first_row, last_row))

    def compute(
        self, batch: Batch, state: State, first: int, last: int, part: tuple[int, int] | None = None
    ) -> Float32:
        """Run steps; numbers after the last step of the plan belong to its draft. `part`: rows to compute."""
        if not isinstance(state, CpuState):
            raise PlanError("the state belongs to another program; create one with new_state")
        with self._lock:
            cosines, sines, rope_rows = self._tables(batch)
            try:
                done = self._native.run(
                    state.native,
                    batch.tokens,
                    batch.positions,
                    batch.offsets,
                    batch.pages,
                    batch.output_rows,
                    cosines,
                    sines,
                    first,
                    last,
                    **self._optional(batch, rope_rows),
                    part=part,
                )
            except RuntimeError as error:  # the system could not start a thread
                raise RequestError(str(error), field="threads") from error
            self._packed.ran(first, last)
        if not done:
            raise CancelledRun("the computation was cancelled")
        return self.value(batch, self._all.steps[last - 1].outputs[-1])

    def value(self, batch: Batch, value: int) -> Float32:
        """Return a view of a value of the last run of `batch`, valid until a later step reuses its memory."""
        rows = len(batch.output_rows) if self._all.values[value].rows == "output" else batch.n_rows
        return self._native.value(self._steps.values[value], rows)

    def _tables(self, batch: Batch) -> tuple[Float32, Float32, npt.NDArray[np.int32] | None]:
        """Return cosines and sines for a batch. If the batch has rope positions, they are cached for the next call.

        Computing the tables for 16,384 rows takes 20 ms, and a tower runs its batch a hundred times, step by step.
        """
        if batch.rope_positions is None:
            return self._rope_tables.tables(batch, _MAX_CONTEXT)
        if self._rope_rows is None or self._rope_rows[0] is not batch:
            self._rope_rows = batch, self._rope_tables.tables(batch, _MAX_CONTEXT)
        return self._rope_rows[1]

    def _optional(self, batch: Batch, rope_rows: npt.NDArray[np.int32] | None) -> dict[str, Any]:
        """Return the arrays of a batch that only some plans need."""
        arrays: dict[str, Any] = {"window_pages": batch.window_pages, "adapters": batch.adapters}
        if batch.is_multimodal:
            arrays |= {
                name: getattr(batch, name)
                for name in ("inputs_embeds", "embeds_rows", "attn_ranges", "gather_rows", "gather_weights")
            }
            arrays["rope_rows"] = rope_rows
        if batch.hidden is not None:
            arrays |= {"hidden": batch.hidden, "is_hidden_normed": batch.is_hidden_normed}
        if self.plan.slots and (batch.hidden is None or len(batch.slots_in)):  # drafts have no slots
            arrays |= {"slots_in": batch.slots_in, "slots_out": batch.slots_out, "snapshots": batch.snapshots}
        return {name: array for name, array in arrays.items() if array is not None}

    def cancel(self) -> None:
        """Stop a run in progress at its next barrier. Any thread may call it."""
        self._native.cancel()

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Time every run in the block. When it ends, the list has nanoseconds per fused step."""
        times: list[int] = []
        self._native.take_times()
        self._native.set_profiling(True)
        try:
            yield times
        finally:
            times += self._native.take_times()[: len(self.running_plan.steps)]
            self._native.set_profiling(False)


class CpuDraft:
    """The draft of a plan: the last steps of its program, with a separate cache."""

    def __init__(self, program: CpuProgram, plan: Plan, running_plan: Plan) -> None:
        self.running_plan = running_plan
        self._program = program
        self._plan = plan
        self._kv_type = program.kv_type
        check_heads(plan)

    def new_state(self, n_pages: int) -> CpuState:
        """Return an empty cache of `n_pages` pages."""
        return CpuState(self._plan, n_pages, self._kv_type)

    def run(self, batch: Batch, state: State, first: int = 0, last: int | None = None) -> Float32:
        """Run steps of the fused draft and return a view of the last value, valid until the next run."""
        first, last = checked_range(first, last, len(self.running_plan.steps))
        n_before = len(self._program.running_plan.steps)
        return self._program.compute(batch, state, n_before + first, n_before + last)


class CpuBackend:
    """C++ kernels, chosen for this CPU."""

    name = "cpu"
    is_gpu = False

    @property
    def levels(self) -> list[str]:
        """Instruction sets, widest first. The last one, scalar, runs on every processor."""
        return _native.kernel_levels()

    def is_available(self) -> bool:
        """True, because scalar kernels run on every CPU."""
        return True

    def compile(self, plan: Plan, tensors: Mapping[str, Tensor], options: Options) -> CpuProgram:
        """Compile the plan. Weights are packed later, panel by panel, when a step first needs them."""
        options.reject_gpu_layers(self.name)
        return CpuProgram(plan, tensors, options)
