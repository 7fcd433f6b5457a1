"""A pass changes how a plan is computed, never what: reference(plan) == reference(pass(plan))."""

from collections import Counter

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan.passes import FUSIONS, fuse
from woolly.runtime import Batch, Options, choose

IDS = np.random.RandomState(3).randint(0, 264, 50).tolist()


def logits(file, plan):
    program = choose("reference").compile(plan, file.tensors, Options())
    state = program.new_state(4)
    first = program.run(Batch.of([(IDS[:30], 0, [2, 1]), (IDS[30:40], 0, [3])], [5, 29, 39]), state)
    second = program.run(Batch.of([(IDS[40:], 30, [2, 1])], range(10)), state)
    return np.concatenate([first, second])


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("n_passes", range(1, len(FUSIONS) + 1))
def test_fused_plans_compute_the_same_bits(name, n_passes, tmp_path):
    with open_gguf(write_tiny(TINY[name], tmp_path / "tiny.gguf")) as file:
        plain = fused = trace(file)
        for one_pass in FUSIONS[:n_passes]:
            fused = one_pass(fused)
        assert fused != plain
        np.testing.assert_array_equal(logits(file, plain), logits(file, fused))


@pytest.mark.parametrize("name", TINY)
def test_every_pass_does_its_work(name, tmp_path):
    tiny = TINY[name]
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        ops = Counter(step.op for step in fuse(trace(file)).steps)
    # Per layer: qkv, store, attend, output with residual, gate and up with swiglu, down with residual.
    expected = {"embed": 1, "linears": 4 * tiny.n_layers + 1, "store": tiny.n_layers, "attend": tiny.n_layers}
    expected |= {"output_rows": 1} | ({"scale": 1} if name == "granite" else {})
    assert ops == expected
