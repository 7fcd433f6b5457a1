"""What a case of attention needs of a program: its store and attend steps on the emulated GPU."""

from __future__ import annotations

import numpy as np

from tests.cases.ops import N_PAGES
from tests.runtime.cuda.emulated import SOURCES, EmulatedDevice
from tests.runtime.cuda.harness import BATCH
from woolly.plan.passes import fuse
from woolly.plan.passes.place import place
from woolly.runtime import Options
from woolly.runtime.cuda.device import Address
from woolly.runtime.cuda.emit import Emitter
from woolly.runtime.cuda.state import CudaState
from woolly.runtime.turns import Turns
from woolly.runtime.views import Views

FILES = ("store.cu", "attend.cu", "attend_few.cu", "attend_many.cu")


class Attention:
    """The steps of a case behind its tables, over one cache."""

    def __init__(self, case, file, n_pages=N_PAGES):
        self.device = EmulatedDevice(*(SOURCES / name for name in FILES))
        self.tensors = case.tensors()
        self.plan = fuse(case.plan(file))
        views = Views(file.tensors)
        self.turns = Turns(self.plan, views)
        self.turns.extend(2048)
        placement = place(self.plan, 512)
        self.arena, self.batch = self.device.allocate(placement.n_bytes), self.device.allocate(BATCH.itemsize)
        options = Options(max_rows=512)
        self.emitter = Emitter(
            self.plan, self.device, options, case.kv_type, views, placement, self.arena, self.batch, self.turns
        )
        self.steps = self.plan.steps[-2:]
        self.emitter.plan = self.plan.__class__(**{**vars(self.plan), "steps": self.steps})
        self.emitter.emit()
        for weight in self.emitter.weights.values():
            self.device.upload(weight.address, weight.make())
        self.state = CudaState(self.device, self.plan, n_pages, case.kv_type)
        self.cosines, self.sines = self.upload(self.turns.cosines), self.upload(self.turns.sines)

    def upload(self, array) -> Address:
        address = self.device.allocate(max(1, array.nbytes))
        self.device.upload(address, np.ascontiguousarray(array))
        return address

    def run(self, batch) -> np.ndarray:
        """The result of the last step, of all rows."""
        held = {
            "tokens": batch.tokens,
            "positions": batch.positions,
            "sequences": np.repeat(np.arange(batch.n_sequences, dtype=np.int32), np.diff(batch.offsets)),
            "offsets": batch.offsets,
            "output_rows": batch.output_rows,
        }
        addresses = {name: self.upload(array) for name, array in held.items()}
        tables = [self.upload(batch.pages)] * (1 + len(self.plan.windows))
        addresses["entries"] = self.upload(self.state.entries(tables))
        row = np.zeros(1, BATCH)
        for name, value in {
            **addresses,
            "n_rows": batch.n_rows,
            "n_sequences": batch.n_sequences,
            "n_output": len(batch.output_rows),
            "max_pages": batch.pages.shape[1],
            "n_longest": batch.positions.max() + 1,
            "cosines": self.cosines,
            "sines": self.sines,
            "n_turns": self.turns.cosines.shape[1],
        }.items():
            row[name] = value
        self.device.upload(self.batch, row)
        for value in self.steps[0].inputs:
            (table,) = (s.weights[0] for s in self.plan.steps if s.op == "embed" and s.output == value)
            self.device.upload(self.emitter.value(value), self.tensors[table.name].values()[batch.tokens])
        for launches in self.emitter.launches:
            for launch in launches:
                if (grid := launch.dimensions(batch.n_rows, len(batch.output_rows))) is not None:
                    self.device.launch(launch.kernel, grid, launch.block, launch.shared, launch.args)
        last = self.steps[-1].output
        out = np.empty((batch.n_rows, self.plan.values[last].width), np.float32)
        self.device.download(self.emitter.value(last), out)
        for address in {*addresses.values(), tables[0]}:
            self.device.free(address)
        return out
