"""The Emitter: a placed plan turned into launches of kernels, step by step.

Lowering is data: for each op the device's `Kernels` have an emitter, a function that turns a step into `Launch` rows.
The program then walks the rows or captures them in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from woolly.errors import UnsupportedError
from woolly.plan import Plan, Step, Weight
from woolly.plan.passes.place import ArenaLayout
from woolly.runtime.gpu.device import Address, Argument, Device
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.views import Views


@dataclass(frozen=True)
class GridRows:
    """A dimension of a grid: the rows of a run divided by `per`, rounded up, times `times`."""

    # 0: rows of the batch, 1: rows of output. If tiles of `per` rows leave those in front to other kernels: 2: as many
    # rows in front as no tile has, 3: the tiles.
    kind: int = 0
    per: int = 1
    times: int = 1

    def count(self, n_rows: int, n_output: int, n_front: int) -> int:
        """The dimension for that many rows of a batch, of output and in front."""
        tiles, before = (-(-n // self.per) for n in ((n_rows, n_output, n_rows, n_rows)[self.kind], n_front))
        if self.kind == 2:
            return before * self.per
        return (tiles - before if self.kind == 3 else tiles) * self.times


@dataclass(frozen=True)
class Launch:
    """One kernel of a step."""

    kernel: str
    grid: tuple[int | GridRows, ...]  # blocks along up to three axes
    block: int  # threads of a block
    args: tuple[Argument, ...]
    shared: int = 0  # bytes of dynamic shared memory
    # Only for runs of this many rows of the kind: variants of a kernel for few and for many rows.
    least: int = 0
    most: int = 1 << 30
    kind: int = 0
    early: bool = False  # may begin while the kernel before it ends: it waits itself before it reads
    # One kernel may compute two steps: this says where the other is, one before or after (-1 or 1). What is `joined` is
    # launched in runs that have both, the rest in runs that have one of them.
    other: int = 0
    joined: bool = False
    group: int = 1  # blocks of a group; more than one: groups wait for others, so no more are launched than run at once
    # Only for runs whose attention takes another way (`Kernels.is_far`), or only for all others.
    far: bool | None = None
    # The kernel of two steps is for runs whose sequences have one row each and see no page that is written for another.
    apart: bool = False

    def is_of(self, step: int, first: int, last: int, is_far: bool = False, is_apart: bool = False) -> bool:
        """Whether it is launched for its step in a run of the steps from `first` to `last`.

        `is_apart`: of one row of each sequence, none of which sees a page that is written for another.
        """
        if self.far not in (None, is_far):
            return False
        is_one = first <= step + self.other < last and (is_apart or not self.apart)
        return self.other == 0 or is_one == self.joined

    def dimensions(self, n_rows: int, n_output: int, n_front: int = 0) -> tuple[int, ...] | None:
        """The grid for that many rows of a batch and of output; None if the run has no blocks for the launch.

        Tiles leave `n_front` rows in front to other kernels.
        """
        rows = (n_rows, n_output, n_front)
        if not max(1, self.least) <= rows[self.kind] <= self.most:
            return None
        grid = tuple(axis.count(*rows) if isinstance(axis, GridRows) else axis for axis in self.grid)
        return grid if math.prod(grid) else None


# Queues the work that turns staged bytes of a tensor into a part of a weight: device, the weight, the staged bytes,
# the first row that they hold, how many rows they hold. Rows are counted over all experts.
Pack = Callable[[Device, Address, Address, int, int], None]


@dataclass(frozen=True)
class TensorPart:
    """A tensor of the file that a weight on the device is made of."""

    name: str  # of the tensor, or of a range of its rows
    pack: Pack | None = None  # None: the file's bytes as they are, from the weight's first byte on
    rows: int = 16  # staged bytes begin at a multiple of this row; 0: the whole tensor is staged at once


@dataclass(frozen=True)
class Fill:
    """A weight on the device and the tensors that fill it: as many rows of one as of another, packed in this order."""

    address: Address
    n_bytes: int
    parts: tuple[TensorPart, ...]


@dataclass(frozen=True)
class Array:
    """A weight on the device that the host makes, when it is uploaded."""

    address: Address
    n_bytes: int
    make: Callable[[], npt.NDArray[np.generic]]
    is_first: bool = False  # packing later weights reads it


class Emitter:
    """What an op's emitter asks for addresses and gives launches to.

    All steps are emitted twice: the first time tells how much scratch memory they share.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        max_rows: int,
        kv_type: str,
        views: Views,
        placement: ArenaLayout,
        arena: Address,
        batch: Address,
        rope_tables: RopeTables,
        draft: Plan | None = None,  # the plan's last steps are those of this one, over a state of its own
    ) -> None:
        self.plan = plan
        self._all = plan
        self._draft = draft
        self.device = device
        self.max_rows = max_rows  # of a batch
        self.kv_type = kv_type
        self.views = views
        self.batch = batch  # of struct Batch
        self._placement = placement
        self._arena = arena
        self._rope_tables = rope_tables
        self._scratch: dict[str, int] = {}  # bytes asked for
        self._addresses: dict[str, Address] = {}  # of scratch memory, once its size is known
        self.weights: dict[str, Fill | Array] = {}  # in order of first use
        self.launches: list[list[Launch]] = []  # of each step
        self.uses: list[list[str]] = []  # of each step: keys of the weights that it asked for

    def emit(self) -> None:
        """Fills `launches` with those of all steps. UnsupportedError names the model's line of a step."""
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
                    f"{step.source}: the {kernels.backend} backend has no attention to positions that an index chooses;"
                    f" open the model with a ctx of at most {n}, where rows see all positions"
                )
            if step.op not in kernels.emitters:
                raise UnsupportedError(f"{step.source}: the {kernels.backend} backend has no kernel for {step.op} yet")
            try:
                kernels.emitters[step.op](self, step)
            except UnsupportedError as error:
                raise UnsupportedError(f"{step.source}: {error}") from None

    def value(self, id: int) -> Address:
        """Where the value is: f32 [rows, width]."""
        return self._arena + self._placement.offsets[id]

    def width(self, id: int) -> int:
        """Columns of the value."""
        return self.plan.values[id].width

    def kind(self, id: int) -> int:
        """1 if the value has rows of output alone, else 0."""
        return int(self.plan.values[id].rows == "output")

    def vector(self, weight: Weight | str) -> Address:
        """A weight as f32 numbers."""
        name = weight if isinstance(weight, str) else weight.name
        tensor = self.views[name]
        return self.array(
            f"vector {name}", 4 * math.prod(tensor.shape), lambda: np.ascontiguousarray(tensor.dequantize())
        )

    def raw(self, weight: Weight | str) -> Address:
        """The file's bytes of a weight, row after row."""
        name = weight if isinstance(weight, str) else weight.name
        tensor = self.views[name]
        n_bytes = tensor.type.row_bytes(tensor.shape[-1]) * math.prod(tensor.shape[:-1])
        return self.weight(f"raw {name}", n_bytes, TensorPart(name))

    def array(
        self, key: str, n_bytes: int, make: Callable[[], npt.NDArray[np.generic]], is_first: bool = False
    ) -> Address:
        """Memory that the loader fills with an array of the host, once for each key.

        One that packing of later weights reads is there first.
        """
        if key not in self.weights:
            self.weights[key] = Array(self.device.allocate(max(n_bytes, 1)), n_bytes, make, is_first)
        self.uses[-1].append(key)
        return self.weights[key].address

    def weight(self, key: str, n_bytes: int, *parts: TensorPart) -> Address:
        """Memory that the loader fills from tensors of the file, once for each key."""
        if key not in self.weights:
            self.weights[key] = Fill(self.device.allocate(n_bytes), n_bytes, parts)
        self.uses[-1].append(key)
        return self.weights[key].address

    def scratch(self, name: str, n_bytes: int) -> Address:
        """Memory that steps share: one piece for each name, as large as the largest that is asked for."""
        self._scratch[name] = max(n_bytes, self._scratch.get(name, 0))
        return self._addresses.get(name, Address(0))

    def column(self, step: Step) -> int:
        """The first column of the step's rotary embedding in the rope tables."""
        return self._rope_tables.column(step)

    def rotations_of(self, columns: npt.NDArray[np.intp], n: int) -> npt.NDArray[np.float32]:
        """Cosines, then sines, of each of these columns of the rope tables for the first n positions."""
        return self._rope_tables.plain(columns, n)

    def beside(self, offset: int) -> Step | None:
        """The step that many places after the one that is emitted; None if there is none."""
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
        """Adds a kernel to the step. Its first argument, the batch, is added here."""
        axes = grid if isinstance(grid, tuple) else (grid,)
        arguments = (self.batch, *args)
        when = (least, most, kind, early, other, joined, group, far, apart)
        row = Launch(kernel, axes, block, arguments, shared, *when)
        self.launches[-1].append(row)


def _chosen(step: Step) -> int:
    """How many positions an index chooses for a row, if the step is such a choice or sees nothing else; else 0."""
    if step.op == "index_topk":
        each = step.integer("every") if step.integer("whole") else step.integer("block")
        return step.integer("n") * each
    if step.op != "attend" or len(step.inputs) < 2:
        return 0
    block = max(1, step.integer("block"))  # a choice of whole blocks has the last one, as far as it goes, beside them
    return step.integer("chosen") // block * block


Emit = Callable[[Emitter, Step], None]
