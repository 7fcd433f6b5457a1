"""Times products of the CUDA backend at the shapes of granite-3.3-8b, and compares the bits of all variants.

    python -m benchmarks.cuda.linears [--rows 1 2 4 8 16 32 64 512 2048] [--types Q4_K Q6_K]

For each matrix and number of rows: microseconds of one step, GB/s of weights read, TFLOP/s, and how many numbers of the
first row differ from those of a run of that row alone: none may. Each step has several copies of its weights, more than
the second-level cache holds.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from woolly._native import quantize_rows
from woolly.gguf import GGUFWriter, open_gguf
from woolly.plan import Plan, Step, Value, Weight
from woolly.plan.passes.plan_memory import ArenaLayout
from woolly.quant import GGMLType
from woolly.runtime.cuda import ops  # noqa: F401 - enters the emitters
from woolly.runtime.cuda.device import CudaDevice, open_device
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Array, Emitter
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews

_BATCH_BYTES = 256  # struct Batch of native/cuda/primitives/common.cuh
_COPIES_BYTES = 250 << 20
_MAX_ROWS = 2048


@dataclass(frozen=True)
class Shape:
    """Matrices of one step."""

    name: str
    rows: tuple[int, ...]
    columns: int
    epilogue: str = "none"
    has_norm: bool = False


SHAPES = (
    Shape("qkv", (4096, 1024, 1024), 4096, has_norm=True),
    Shape("o", (4096,), 4096, "residual"),
    Shape("gate, up", (12800, 12800), 4096, "glu:silu", has_norm=True),
    Shape("down", (4096,), 12800, "residual"),
    Shape("output", (49155,), 4096, has_norm=True),
)


class Bench:
    """Copies of one step on the device."""

    def __init__(self, device: CudaDevice, shape: Shape, type: GGMLType, folder: Path) -> None:
        rng = np.random.default_rng(1)
        self.device, self.shape = device, shape
        self.n_bytes = sum(shape.rows) * type.row_bytes(shape.columns)
        n_copies = max(1, _COPIES_BYTES // self.n_bytes)
        writer = GGUFWriter(folder / "bench.gguf")
        writer.add_tensor("norm", rng.normal(1, 0.1, shape.columns).astype(np.float32))
        source = rng.normal(0, 0.02, (64, shape.columns)).astype(np.float32).view(np.uint8).reshape(-1)
        pool = np.empty((64, type.row_bytes(shape.columns)), np.uint8)
        quantize_rows(int(GGMLType.F32), source, shape.columns, int(type), pool.reshape(-1), 1)
        for copy in range(n_copies):
            for i, n in enumerate(shape.rows):
                picked = pool[rng.integers(0, 64, n)]
                writer.add_raw_tensor(f"w{copy}.{i}", type, (n, shape.columns), picked.reshape(-1))
        writer.write()
        is_glu = shape.epilogue.startswith("glu")
        widths = shape.rows[:1] if is_glu else shape.rows
        self.width = widths[0]
        values = [Value(0, shape.columns, "batch"), Value(1, self.width, "batch")]
        values += [Value(2 + i, n, "batch") for i, n in enumerate(widths)]
        inputs = (0, 1) if shape.epilogue == "residual" else (0,)
        norm = (Weight("norm", GGMLType.F32, (shape.columns,)),) if shape.has_norm else ()
        roles = " ".join(("norm",) * shape.has_norm + ("weight",) * len(shape.rows))
        attributes = (("roles", roles), ("eps", 1e-5), ("scale", 1.0), ("epilogue", shape.epilogue), ("limit", 0.0))
        steps = []
        for copy in range(n_copies):
            matrices = [Weight(f"w{copy}.{i}", type, (n, shape.columns)) for i, n in enumerate(shape.rows)]
            outputs = tuple(range(2, 2 + len(widths)))
            steps.append(Step("linears", inputs, outputs, (*norm, *matrices), attributes, "benchmark"))
        plan = Plan("benchmark", tuple(steps), tuple(values), ())
        sizes = {value.id: 4 * value.width * _MAX_ROWS for value in values}
        self.addresses = {id: device.allocate(size) for id, size in sizes.items()}
        self.batch = device.allocate(_BATCH_BYTES)
        with open_gguf(writer.path) as file:
            views = WeightViews(file.tensors)
            layout = ArenaLayout({id: int(a) for id, a in self.addresses.items()}, sizes, 0)
            arguments = (layout, Address(0), self.batch, RopeTables(plan, views))
            self.emitter = Emitter(plan, device, _MAX_ROWS, "f16", views, *arguments)
            self.emitter.emit()
            for weight in self.emitter.weights.values():
                if isinstance(weight, Array):
                    device.upload(weight.address, np.ascontiguousarray(weight.make()))
                    continue
                for part in weight.parts:
                    data = np.ascontiguousarray(views[part.name].data).view(np.uint8).reshape(-1)
                    staged = device.allocate(data.nbytes)
                    device.upload(staged, data)
                    assert part.pack is not None
                    part.pack(device, weight.address, staged, 0, views[part.name].shape[0])
                    device.wait()
                    device.free(staged)
        for id in (0, 1):
            device.upload(self.addresses[id], rng.normal(0, 1, (_MAX_ROWS, values[id].width)).astype(np.float32))
        device.wait()

    def run(self, n_rows: int, n_times: int = 5) -> tuple[float, np.ndarray]:
        """Microseconds of one step, and the first row of its first value."""
        counts = np.zeros(_BATCH_BYTES // 4, np.int32)
        counts[:3] = n_rows, 1, n_rows
        self.device.upload(self.batch, counts)
        n_steps = len(self.emitter.launches)

        def queue(last: int) -> None:
            for launches in self.emitter.launches[:last]:
                for launch in launches:
                    grid = launch.dimensions(n_rows, n_rows)
                    if grid is not None:
                        self.device.launch(
                            launch.kernel, grid, launch.block, launch.shared, launch.args, launch.early, launch.group
                        )

        queue(1)
        first = np.empty(self.width, np.float32)
        self.device.download(self.addresses[2], first)
        self.device.wait()
        graph = self.device.capture(lambda: queue(n_steps))
        self.device.replay(graph)
        marks = [self.device.mark()]
        for _ in range(n_times):
            self.device.replay(graph)
            marks.append(self.device.mark())
        self.device.wait()
        times = self.device.times(marks)
        self.device.forget(graph)
        return float(np.median(times)) / 1e3 / n_steps, first


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32, 64, 512, 2048])
    parser.add_argument("--types", nargs="*", default=["Q4_K", "Q6_K"])
    options = parser.parse_args()
    for type in (GGMLType[name] for name in options.types):
        for shape in SHAPES:
            device = open_device()
            with tempfile.TemporaryDirectory() as folder:
                bench = Bench(device, shape, type, Path(folder))
            products = sum(shape.rows) * shape.columns
            _, alone = bench.run(1)
            for n_rows in options.rows:
                if shape.name == "output" and n_rows > 64:  # only rows whose logits are wanted come here
                    continue
                us, first = bench.run(n_rows)
                n_wrong = int((alone.view(np.uint32) != first.view(np.uint32)).sum())
                rates = f"{bench.n_bytes / us / 1e3:6.0f} GB/s {2 * products * n_rows / us / 1e6:6.1f} TFLOP/s"
                print(f"{type.name} {shape.name:9} {n_rows:5} rows {us:9.2f} us {rates}  {n_wrong} differ", flush=True)
            device.close()


if __name__ == "__main__":
    main()
