"""CaseProgram: a plan on the emulated GPU by its emitters alone, as tests of kernels need it.

Every value has memory of its own that ends where its rows end, so that what a kernel reads beyond them is caught.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from woolly.plan.passes.plan_memory import ArenaLayout
from woolly.runtime import Batch
from woolly.runtime.cuda import ops  # noqa: F401 - enters the emitters
from woolly.runtime.cuda.ops.attention import is_far
from woolly.runtime.gpu.batch_checks import is_apart
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Array, Emitter, Fill
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews

if TYPE_CHECKING:
    from tests.runtime.cuda.emulated import EmulatedDevice

# struct Batch of native/cuda/primitives/common.cuh.
BATCH = np.dtype(
    [
        *((name, np.int32) for name in ("n_rows", "n_sequences", "n_output", "max_pages")),
        *((name, np.int32) for name in ("n_snapshots", "n_adapters", "is_hidden_normed", "max_length")),
        *((name, np.uint64) for name in ("tokens", "positions", "sequences", "offsets", "output_rows")),
        *((name, np.uint64) for name in ("slots_in", "slots_out", "snapshots", "adapters", "hidden")),
        *((name, np.uint64) for name in ("cosines", "sines", "slots", "entries")),
        *((name, np.int32) for name in ("rope_width", "pad")),
        *(
            (name, np.uint64)
            for name in ("rope_rows", "attn_ranges", "inputs_embeds", "embeds_at", "gather_rows", "gather_weights")
        ),
        *((name, np.int32) for name in ("embeds_width", "n_gather")),
    ]
)


class Slots:
    """Slots alone, for plans without attention."""

    def __init__(self, device, plan, n_slots):
        self.sizes = [(n_slots, plan.slots[i].numbers) for i in range(len(plan.state))]
        self.addresses = [device.allocate(4 * n * numbers) for n, numbers in self.sizes]

    def slots(self):
        return np.array(self.addresses, np.uint64)

    def entries(self, tables):
        return np.zeros(1, np.uint64)


class CaseProgram:
    """A plan, its weights and values on a device. The plan must be fused already."""

    def __init__(self, device: EmulatedDevice, plan, tensors, kv_type="f32", max_rows=256):
        self.device, self.plan, self.kv_type, self.max_rows = device, plan, kv_type, max_rows
        views = WeightViews(tensors)
        self._rope_tables = RopeTables(plan, views)
        self._batch = device.allocate(BATCH.itemsize)
        made = [value for step in plan.steps for value in step.outputs]
        self._sizes = {value: 4 * plan.values[value].width * max_rows for value in made}
        offsets = {value: int(device.allocate(n_bytes)) for value, n_bytes in self._sizes.items()}
        layout = ArenaLayout(offsets, self._sizes, 0)
        self.emitter = Emitter(
            plan, device, max_rows, kv_type, views, layout, Address(0), self._batch, self._rope_tables
        )
        self.emitter.emit()
        for weight in self.emitter.weights.values():
            self._fill(weight, views)
        self._kept: list[Address] = []

    def _fill(self, weight: Array | Fill, views: WeightViews) -> None:
        if isinstance(weight, Array):
            self.device.upload(weight.address, np.ascontiguousarray(weight.make()))
            return
        for part in weight.parts:
            data = np.ascontiguousarray(views[part.name].data).view(np.uint8).reshape(-1)
            if part.pack is None:
                self.device.upload(weight.address, data)
                continue
            staged = self._upload(data)
            part.pack(self.device, weight.address, staged, 0, int(np.prod(views[part.name].shape[:-1])))
            self.device.free(staged)

    def _upload(self, array: np.ndarray) -> Address:
        address = self.device.allocate(max(1, array.nbytes))
        self.device.upload(address, np.ascontiguousarray(array))
        return address

    def new_state(self, n_pages: int, n_slots: int = 0, window_pages=()):
        if not self.plan.paged:
            return Slots(self.device, self.plan, n_slots)
        from woolly.runtime.gpu.state import GpuState

        return GpuState(self.device, self.plan, n_pages, self.kv_type, n_slots, window_pages)

    def run(self, batch: Batch, state, first=0, last=None) -> np.ndarray:
        """The value of the last step. What a run leaves behind in values is as it was, rows beyond its own too."""
        last = len(self.plan.steps) if last is None else last
        n_rows, n_output = batch.n_rows, len(batch.output_rows)
        assert n_rows <= self.max_rows
        apart = is_apart(batch)
        self._upload_batch(batch, state)
        for step in range(first, last):
            for launch in self.emitter.launches[step]:
                is_of = launch.is_of(step, first, last, is_far(batch), apart)
                grid = launch.dimensions(n_rows, n_output) if is_of else None
                if grid is not None:
                    self.device.launch(
                        launch.kernel, grid, launch.block, launch.shared, launch.args, launch.early, launch.group
                    )
        value = self.plan.values[self.plan.steps[last - 1].outputs[-1]]
        out = np.empty((n_output if value.rows == "output" else n_rows, value.width), np.float32)
        self.device.download(self.emitter.value(value.id), out)
        return out

    def _upload_batch(self, batch: Batch, state) -> None:
        for address in self._kept:
            self.device.free(address)
        cosines, sines, rope_rows = self._rope_tables.tables(batch, 1 << 20)
        n_windows = len(self.plan.windows)
        tables = [self._upload(batch.table(window)) for window in (None, *range(n_windows))]
        rows = {
            "tokens": batch.tokens,
            "positions": batch.positions,
            "sequences": np.repeat(np.arange(batch.n_sequences, dtype=np.int32), np.diff(batch.offsets)),
            "offsets": batch.offsets,
            "output_rows": batch.output_rows,
            "slots_in": batch.slots_in,
            "slots_out": batch.slots_out,
            "snapshots": batch.snapshots,
            "cosines": cosines,
            "sines": sines,
            "rope_rows": batch.positions if rope_rows is None else rope_rows,
            "slots": state.slots(),
            "entries": state.entries(tables),
        }
        rows |= {} if batch.adapters is None else {"adapters": batch.adapters}
        own = {
            name: getattr(batch, name)
            for name in ("hidden", "attn_ranges", "inputs_embeds", "gather_rows", "gather_weights")
        }
        rows |= {name: array for name, array in own.items() if array is not None}
        if batch.embeds_rows is not None:
            rows["embeds_at"] = np.full(batch.n_rows, -1, np.int32)
            rows["embeds_at"][batch.embeds_rows] = range(len(batch.embeds_rows))
        there = {name: self._upload(array) for name, array in rows.items()}
        counts = {
            "n_rows": batch.n_rows,
            "n_sequences": batch.n_sequences,
            "n_output": len(batch.output_rows),
            "max_pages": batch.pages.shape[1],
            "n_snapshots": len(batch.snapshots),
            "n_adapters": 0 if batch.adapters is None else batch.adapters.shape[1],
            "is_hidden_normed": int(batch.is_hidden_normed),
            "max_length": int(batch.positions.max()) + 1,
            "rope_width": cosines.shape[1],
            "embeds_width": 0 if batch.inputs_embeds is None else batch.inputs_embeds.shape[1],
            "n_gather": 0 if batch.gather_rows is None else batch.gather_rows.shape[1],
        }
        struct = np.zeros(1, BATCH)
        for name, number in (counts | there).items():
            struct[name] = number
        self.device.upload(self._batch, struct)
        self._kept = [*tables, *there.values()]
