"""Experts of many rows by Hopper's own kernels on the emulated GPU: near the reference, with the bits of few rows."""

import numpy as np
import pytest

from tests.cases.moe import Experts
from tests.cases.ops import N_TOKENS
from tests.runtime.cuda.emulated import HopperDevice
from tests.runtime.cuda.harness import CaseProgram
from tests.runtime.test_moe import plan_of, write
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

Q4_K = (GGMLType.Q4_K,) * 3


class Hopper(HopperDevice):
    """With few processors: pairs of blocks take several items each."""

    n_processors = 6
    names = ("pack", "embed", "moe", "moe_route", "moe_rows8", "moe_down_gemv", "moe_wgmma")


def run(experts: Experts, counts, folder) -> tuple[list[np.ndarray], np.ndarray, set[str]]:
    """Values of each count of rows, those of the reference, and the names of the kernels that were launched."""
    device, launched = Hopper(), set()
    launch = device.launch

    def watched(kernel, *rest):
        launched.add(kernel)
        launch(kernel, *rest)

    device.launch = watched
    with write(folder / "moe.gguf", experts.make(np.random.default_rng(5), N_TOKENS)) as file:
        plan = plan_of(file, experts.build)
        batches = [Batch.of([(np.arange(n) % N_TOKENS, 0, range(24))], []) for n in counts]
        reference = get_backend("reference").compile(plan, file.tensors, Options())
        want = reference.run(batches[0], reference.new_state(24)).copy()
        program = CaseProgram(device, fuse(plan), file.tensors, max_rows=max(counts))
        values = [program.run(batch, program.new_state(24)).copy() for batch in batches]
    device.close()
    return values, want, launched


@pytest.mark.parametrize(
    ("experts", "counts", "widths"),
    [
        # Rows of weights that are not whole items, experts without rows, and others with many.
        pytest.param(
            *(Experts(5, 2, Q4_K, width=256, ffn=512, logits=(5.0, -9.0, 2.0, 5.5, 1.0)), (65, 64, 1), (64,)),
            marks=pytest.mark.rare,
        ),
        # More rows than an item has, and less than half of it left; weighed before the products.
        (Experts(3, 2, Q4_K, width=512, ffn=256, norm=True, residual=True, weigh="input"), (130, 65, 64), (64, 128)),
    ],
    ids=["few-each", "many-each"],
)
def test_many_row_kernels_match_few_row_kernels(experts, counts, widths, tmp_path):
    (most, *fewer), want, launched = run(experts, counts, tmp_path)
    wide = {f"moe_wgmma_{kind}__q4_k_{n}" for kind in ("glu", "plain") for n in widths}
    assert {name for name in launched if "wgmma" in name} == wide
    assert np.linalg.norm(most - want) <= 2e-3 * np.linalg.norm(want)
    for values in fewer:
        np.testing.assert_array_equal(values.view(np.uint32), most[: len(values)].view(np.uint32))
