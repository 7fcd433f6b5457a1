"""Emitter: lowers a memory-planned plan to kernel launches, step by step.

For each op, the device's `Kernels` have an emitter, a function that lowers a step to `Launch` rows. The program queues
the rows or captures them in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.errors import UnsupportedError
from woolly.plan import Plan, Step, Weight
from woolly.plan.passes.plan_memory import ArenaLayout
from woolly.runtime.gpu.device import Address, Argument, Device
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews


@dataclass(frozen=True)
class GridRows:
    """A grid dimension: ceil(rows / per) * times."""

    # 0: batch rows, 1: output rows. Tiled attention skips `n_front` leading rows; with it, 2: rows before the first
    # tile, 3: tiles of `per` rows.
    kind: int = 0
    per: int = 1
    times: int = 1

    def count(self, n_rows: int, n_output: int, n_front: int) -> int:
        """Return the dimension for these counts of batch, output and front rows."""
        tiles, before = (-(-n // self.per) for n in ((n_rows, n_output, n_rows, n_rows)[self.kind], n_front))
        if self.kind == 2:
            return before * self.per
        return (tiles - before if self.kind == 3 else tiles) * self.times


@dataclass(frozen=True)
class Launch:
    """A kernel launch of a step."""

    kernel: str
    grid: tuple[int | GridRows, ...]  # blocks along up to three axes
    block: int  # threads of a block
    args: tuple[Argument, ...]
    shared: int = 0  # bytes of dynamic shared memory
    # Minimum and maximum row counts (of `kind`) for this kernel variant.
    least: int = 0
    most: int = 1 << 30
    kind: int = 0
    early: bool = False  # may start before the previous kernel ends; synchronizes itself
    # Offset of the other step (-1 or 1) if one kernel can compute both. Runs with both steps use the `joined` launches,
    # runs with only one of them the others.
    other: int = 0
    joined: bool = False
    group: int = 1  # blocks per cooperating group; if above 1, only resident groups are launched
    # True: only if `Kernels.is_far`. False: only if not. None: always.
    far: bool | None = None
    # `joined` applies only if each sequence has one row and no row reads a page that another row writes.
    apart: bool = False

    def is_of(self, step: int, first: int, last: int, is_far: bool = False, is_apart: bool = False) -> bool:
        """True if this launch is used for its step in a run of steps `first` to `last`.

        `is_apart`: each sequence has one row and no row reads a page that another row writes.
        """
        if self.far not in (None, is_far):
            return False
        is_one = first <= step + self.other < last and (is_apart or not self.apart)
        return self.other == 0 or is_one == self.joined

    def dimensions(self, n_rows: int, n_output: int, n_front: int = 0) -> tuple[int, ...] | None:
        """Return the grid for these row counts, or None if the launch is not used.

        `n_front`: leading rows that tiled attention skips.
        """
        rows = (n_rows, n_output, n_front)
        if not max(1, self.least) <= rows[self.kind] <= self.most:
            return None
        grid = tuple(axis.count(*rows) if isinstance(axis, GridRows) else axis for axis in self.grid)
        return grid if math.prod(grid) else None


# Queues repacking of staged rows: device, address of the weight, address of the staged rows, first row, number of
# rows. Rows are counted over all experts.
Pack = Callable[[Device, Address, Address, int, int], None]


@dataclass(frozen=True)
class TensorPart:
    """A tensor of the file that is a source of a device weight."""

    name: str  # tensor, or row range of a tensor
    pack: Pack | None = None  # None: bytes are copied unchanged to the start of the weight
    rows: int = 16  # staging granularity in rows; 0: the complete tensor


@dataclass(frozen=True)
class Fill:
    """A device weight and its source tensors, which have equal row counts and are packed in this order."""

    address: Address
    n_bytes: int
    parts: tuple[TensorPart, ...]


@dataclass(frozen=True)
class Array:
    """A device weight computed on the host at upload."""

    address: Address
    n_bytes: int
    make: Callable[[], npt.NDArray[np.generic]]
    is_first: bool = False  # whether packing of later weights reads it


class Emitter:
    """Context of op emitters: resolves addresses and collects launches.

    All steps are emitted twice. The first pass computes the size of shared scratch memory.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        max_rows: int,
        kv_type: str,
        views: WeightViews,
        layout: ArenaLayout,
        arena: Address,
        batch: Address,
        rope_tables: RopeTables,
        draft: Plan | None = None,  # the last steps of the plan, which use a separate state
    ) -> None:
        self.plan = plan
        self._all = plan
        self._draft = draft
        self.device = device
        self.max_rows = max_rows  # maximum rows of a batch
        self.kv_type = kv_type
        self.views = views
        self.batch = batch  # address of struct Batch
        self._layout = layout
        self._arena = arena
        self._rope_tables = rope_tables
        self._scratch: dict[str, int] = {}  # requested bytes
        self._addresses: dict[str, Address] = {}  # addresses of scratch memory, allocated after the first pass
        self.weights: dict[str, Fill | Array] = {}  # in order of first use
        self.launches: list[list[Launch]] = []  # launches of each step
        self.uses: list[list[str]] = []  # weight keys of each step

    def emit(self) -> None:
        """Emit all steps into `launches`. UnsupportedError names the step's source line in the model."""
        self._walk()
        self._addresses = {name: self.device.allocate(n_bytes) for name, n_bytes in self._scratch.items()}
        self._walk()

    def _walk(self) -> None:
        self.launches, self.uses = [], []
        draft, kernels = self._draft, self.device.kernels
        n_before = len(self._all.steps) - (0 if draft is None else len(draft.steps))
        for index, step in enumerate(self._all.steps):
            self.plan = self._all if draft is None or index < n_before else replace(self._all, state=draft.state)
            self.launches.append([])
            self.uses.append([])
            if not kernels.chooses and (n := _chosen(step)):
                raise UnsupportedError(
                    f"{step.source}: the {kernels.backend} backend does not support sparse attention;"
                    f" open the model with a ctx of at most {n}, where attention is not sparse"
                )
            if step.op not in kernels.emitters:
                raise UnsupportedError(f"{step.source}: the {kernels.backend} backend has no kernel for {step.op} yet")
            try:
                kernels.emitters[step.op](self, step)
            except UnsupportedError as error:
                raise UnsupportedError(f"{step.source}: {error}") from None

    def value(self, id: int) -> Address:
        """Return the address of a value: f32 [rows, width]."""
        return self._arena + self._layout.offsets[id]

    def width(self, id: int) -> int:
        """Return the number of columns of a value."""
        return self.plan.values[id].width

    def kind(self, id: int) -> int:
        """Return 1 if the value has output rows only, else 0 (all batch rows)."""
        return int(self.plan.values[id].rows == "output")

    def vector(self, weight: Weight | str) -> Address:
        """Return the address of a weight, dequantized to f32."""
        name = weight if isinstance(weight, str) else weight.name
        tensor = self.views[name]
        return self.array(
            f"vector {name}", 4 * math.prod(tensor.shape), lambda: np.ascontiguousarray(tensor.dequantize())
        )

    def raw(self, weight: Weight | str) -> Address:
        """Return the address of a weight in its file format, row-major."""
        name = weight if isinstance(weight, str) else weight.name
        tensor = self.views[name]
        n_bytes = tensor.type.row_bytes(tensor.shape[-1]) * math.prod(tensor.shape[:-1])
        return self.weight(f"raw {name}", n_bytes, TensorPart(name))

    def array(
        self, key: str, n_bytes: int, make: Callable[[], npt.NDArray[np.generic]], is_first: bool = False
    ) -> Address:
        """Return memory that the loader fills with a host array, shared by equal keys.

        `is_first`: uploaded first, because packing of later weights reads it.
        """
        if key not in self.weights:
            self.weights[key] = Array(self.device.allocate(max(n_bytes, 1)), n_bytes, make, is_first)
        self.uses[-1].append(key)
        return self.weights[key].address

    def weight(self, key: str, n_bytes: int, *parts: TensorPart) -> Address:
        """Return memory that the loader fills from tensors of the file, shared by equal keys."""
        if key not in self.weights:
            self.weights[key] = Fill(self.device.allocate(n_bytes), n_bytes, parts)
        self.uses[-1].append(key)
        return self.weights[key].address

    def scratch(self, name: str, n_bytes: int) -> Address:
        """Return scratch memory shared by all steps, by name, sized by the largest request."""
        self._scratch[name] = max(n_bytes, self._scratch.get(name, 0))
        return self._addresses.get(name, Address(0))

    def column(self, step: Step) -> int:
        """Return the first column of the step's rotary embedding in the rope tables."""
        return self._rope_tables.column(step)

    def rotations_of(self, columns: npt.NDArray[np.intp], n: int) -> npt.NDArray[np.float32]:
        """Return cosines, then sines, of these rope table columns for the first n positions."""
        return self._rope_tables.plain(columns, n)

    def new_stream(self, offset: int) -> Step | None:
        """Return the step at an offset from the current one, or None."""
        index = len(self.launches) - 1 + offset
        return self._all.steps[index] if 0 <= index < len(self._all.steps) else None

    def launch(
        self,
        kernel: str,
        grid: tuple[int | GridRows, ...] | int | GridRows,
        block: int,
        *args: Argument,
        shared: int = 0,
        least: int = 0,
        most: int = 1 << 30,
        kind: int = 0,
        early: bool = False,
        other: int = 0,
        joined: bool = False,
        group: int = 1,
        far: bool | None = None,
        apart: bool = False,
    ) -> None:
        """Add a kernel launch to the current step, with struct Batch as the first argument."""
        axes = grid if isinstance(grid, tuple) else (grid,)
        arguments = (self.batch, *args)
        when = (least, most, kind, early, other, joined, group, far, apart)
        row = Launch(kernel, axes, block, arguments, shared, *when)
        self.launches[-1].append(row)


def _chosen(step: Step) -> int:
    """Return the number of positions that a sparse attention step or its indexer selects per row; 0 otherwise."""
    if step.op == "index_topk":
        each = step.integer("every") if step.integer("whole") else step.integer("block")
        return step.integer("n") * each
    if step.op != "attend" or len(step.inputs) < 2:
        return 0
    block = max(1, step.integer("block"))  # block selection adds the last, partial block
    return step.integer("chosen") // block * block


Emit = Callable[[Emitter, Step], None]
