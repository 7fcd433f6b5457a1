"""An emitter gives launches their addresses, grids and weights."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.chosen import CHOSEN
from tests.cases.newest import NEWEST
from tests.cases.tiny import TINY, write_tiny
from woolly.errors import UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan.passes import fuse
from woolly.plan.passes.plan_memory import plan_memory
from woolly.runtime.gpu.device import Address
from woolly.runtime.gpu.emitter import Emitter, GridRows, Launch
from woolly.runtime.gpu.kernels import Kernels
from woolly.runtime.rope_tables import RopeTables
from woolly.runtime.weight_views import WeightViews


class Counting:
    """A device that only gives out addresses."""

    def __init__(self):
        self.end = 0
        self.sizes = []
        self.ask_for((), None)

    def ask_for(self, ops, emit):
        self.kernels = Kernels("cuda", dict.fromkeys(ops, emit), lambda plan, kv_type: frozenset(), lambda batch: False)

    def allocate(self, n_bytes):
        self.sizes.append(n_bytes)
        self.end += 1 << 20
        return Address(self.end)


def emitter_of(file, left_out=""):
    """Emitter of a file's plan, without the steps of an op."""
    plan, views = fuse(trace(file)), WeightViews(file.tensors)
    layout = plan_memory(plan, 8)
    plan = replace(plan, steps=tuple(step for step in plan.steps if step.op != left_out))
    return Emitter(
        *(plan, Counting(), 8, "f16", views, layout),
        *(Address(1 << 40), Address(64), RopeTables(plan, views)),
    )


@pytest.fixture
def emitter(tmp_path):
    with open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as file:
        yield emitter_of(file)


def test_grid_follows_the_rows_of_a_run():
    launch = Launch("k", (GridRows(0, 4, 3), GridRows(1), 5), 32, (), least=2, most=9)
    assert launch.dimensions(9, 2) == (9, 2, 5)
    assert launch.dimensions(1, 1) is None and launch.dimensions(10, 1) is None
    assert launch.dimensions(3, 0) is None  # no blocks
    assert Launch("k", (GridRows(1),), 32, (), kind=1, most=1).dimensions(9, 1) == (1,)


def test_tiles_leave_leading_rows_to_other_launches():
    tiles = Launch("tiles", (GridRows(3, per=8, times=2),), 32, ())
    front = Launch("front", (GridRows(2, per=8),), 32, (), kind=2, most=8)
    assert [tiles.dimensions(20, 1, n) for n in (0, 1, 8, 9)] == [(6,), (4,), (4,), (2,)]
    assert [front.dimensions(20, 1, n) for n in (0, 1, 8, 9)] == [None, (8,), (8,), None]


def test_launches_are_selected_by_context_length():
    found = [
        [Launch("k", (1,), 32, (), far=far).is_of(0, 0, 1, is_far) for is_far in (False, True)]
        for far in (None, False, True)
    ]
    assert found == [[True, True], [True, False], [False, True]]


def test_fused_kernel_is_launched_only_where_it_can_compute_both_steps():
    store, both = Launch("s", (1,), 32, (), other=1), Launch("b", (1,), 32, (), other=-1, joined=True)
    assert [store.is_of(3, 0, n) for n in (4, 5)] == [True, False]
    assert [both.is_of(4, n, 5) for n in (4, 3)] == [False, True]
    store, both = replace(store, apart=True), replace(both, apart=True)
    assert [store.is_of(3, 0, 5, is_apart=is_apart) for is_apart in (False, True)] == [True, False]
    assert [both.is_of(4, 0, 5, is_apart=is_apart) for is_apart in (False, True)] == [False, True]
    assert store.is_of(3, 0, 4, is_apart=True) and not both.is_of(4, 4, 5, is_apart=True)


def test_scratch_memory_is_shared_and_as_large_as_the_largest_request(emitter):
    sizes = iter([100, 300, 200] * 2)
    n = {step.op for step in emitter.plan.steps}

    def ask(emitter, step):
        emitter.launch("k", GridRows(), 32, emitter.scratch("sums", next(sizes, 1)), emitter.width(step.outputs[0]))

    emitter.device.ask_for(n, ask)
    emitter.emit()
    assert emitter.device.sizes == [300]
    assert len(emitter.launches) == len(emitter.plan.steps)
    assert {row.args[:2] for rows in emitter.launches for row in rows} == {(Address(64), Address(1 << 20))}


def test_weight_is_allocated_once_and_counted_for_each_step(emitter):
    def ask(emitter, step):
        for weight in step.weights:
            emitter.vector(weight.name)
            emitter.raw(weight)

    emitter.device.ask_for({step.op for step in emitter.plan.steps}, ask)
    emitter.emit()
    weights = emitter.plan.weights
    assert len(emitter.device.sizes) == 2 * len(weights) == len(emitter.weights)
    name, weight = next(iter(weights.items()))
    assert emitter.weights[f"raw {name}"].n_bytes == weight.n_bytes
    made = emitter.weights[f"vector {name}"].make()
    assert made.dtype == np.float32 and made.nbytes == emitter.weights[f"vector {name}"].n_bytes
    assert sum(map(len, emitter.uses)) == 2 * sum(len(step.weights) for step in emitter.plan.steps)


def test_op_without_kernels_is_rejected_with_the_model_line(emitter):
    with pytest.raises(UnsupportedError, match=r"\.py:\d+: the cuda backend has no kernel for embed yet"):
        emitter.emit()


@pytest.mark.parametrize("left_out", ["", "index_topk"], ids=["choice", "chosen"])
@pytest.mark.parametrize(("name", "n"), [("dots3note", 8), ("minimax-m3", 12), ("qwen4exp", 8)])
def test_index_positions_beyond_the_limit_are_rejected_with_a_working_context(name, n, left_out, tmp_path):
    with open_gguf(write_tiny((CHOSEN | NEWEST)[name], tmp_path / "tiny.gguf")) as file:
        emitter = emitter_of(file, left_out)
        emitter.device.ask_for({step.op for step in emitter.plan.steps}, lambda emitter, step: None)
        with pytest.raises(
            UnsupportedError, match=rf"the cuda backend does not support .* with a ctx of at most {n}, where"
        ):
            emitter.emit()
