"""Experts of many rows by Hopper's own kernels on the emulated GPU: the bits of those of all generations."""

import numpy as np
import pytest

from tests.cases.moe import Experts
from tests.cases.ops import N_TOKENS
from tests.runtime.cuda.emulated import SOURCES, EmulatedDevice, HopperDevice
from tests.runtime.cuda.harness import CaseProgram
from tests.runtime.test_moe import plan_of, write
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch

Q4_K = (GGMLType.Q4_K,) * 3
NAMES = ("pack", "embed", "moe", "moe_route", "moe_few", "moe_one")


class Hopper(HopperDevice):
    """With few processors: pairs of blocks take several items each."""

    n_processors = 6
    names = (*NAMES, "moe_wide")


class Plain(EmulatedDevice):
    """With the products that all generations have, of one kind of tiles."""

    macros = ("WOOLLY_EMULATED=1", *Hopper.macros[1:])

    def __init__(self) -> None:
        super().__init__(*(SOURCES / f"{name}.cu" for name in (*NAMES, "moe_many")))


def run(device, experts: Experts, counts, folder) -> tuple[list[np.ndarray], set[str]]:
    """Values of each count of rows, and the names of the kernels that made them."""
    launched: set[str] = set()
    launch = device.launch

    def watched(kernel, *rest):
        launched.add(kernel)
        launch(kernel, *rest)

    device.launch = watched
    with write(folder / "moe.gguf", experts.make(np.random.default_rng(5), N_TOKENS)) as file:
        program = CaseProgram(device, fuse(plan_of(file, experts.build)), file.tensors, max_rows=max(counts))
        batches = [Batch.of([(np.arange(n) % N_TOKENS, 0, range(24))], []) for n in counts]
        values = [program.run(batch, program.new_state(24)).copy() for batch in batches]
    device.close()
    return values, launched


@pytest.mark.parametrize(
    ("experts", "counts", "widths"),
    [
        # Rows of weights that are not whole items, experts without rows, and others with many.
        (Experts(5, 2, Q4_K, width=256, ffn=512, logits=(5.0, -9.0, 2.0, 5.5, 1.0)), (65, 1, 7), (64,)),
        # More rows than an item has, and less than half of it left; weighed before the products.
        (Experts(3, 2, Q4_K, width=512, ffn=256, norm=True, residual=True, weigh="input"), (130, 65), (64, 128)),
    ],
    ids=["few-each", "many-each"],
)
def test_kernels_of_many_rows_give_the_bits_of_those_of_all_generations(experts, counts, widths, tmp_path):
    ours, launched = run(Hopper(), experts, counts, tmp_path)
    wide = {f"moe_wide_{kind}__q4_k_{n}" for kind in ("pairs", "rows") for n in widths}
    assert {name for name in launched if "wide" in name} == wide
    wanted, _ = run(Plain(), experts, counts, tmp_path)
    for values, want in zip(ours, wanted, strict=True):
        assert np.isfinite(values).all()
        np.testing.assert_array_equal(values.view(np.uint32), want.view(np.uint32))
        np.testing.assert_array_equal(values.view(np.uint32), ours[0][: len(values)].view(np.uint32))
