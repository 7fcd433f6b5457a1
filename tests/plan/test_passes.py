"""A pass changes how a plan is computed, never what: reference(plan) == reference(pass(plan))."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Rope, Tracer
from woolly.plan.passes import FUSIONS, fuse, prune_rows
from woolly.plan.passes.inject_embeddings import inject_embeddings
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

IDS = np.random.RandomState(3).randint(0, 264, 50).tolist()


def logits(file, plan):
    program = get_backend("reference").compile(plan, file.tensors, Options())
    state, slots = program.new_state(4, 3), [(-1, 0), (-1, 1)]
    batch = Batch.of([(IDS[:30], 0, [2, 1]), (IDS[30:40], 0, [3])], [5, 29, 39], slots=slots)
    first = program.run(batch, state)
    second = program.run(Batch.of([(IDS[40:], 30, [2, 1])], range(10), slots=[(0, 2)]), state)
    return np.concatenate([first, second])


@pytest.mark.parametrize("name", FAMILIES)
def test_fused_plans_compute_the_same_bits(name, tmp_path):
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plain = fused = prune_rows(
            trace(file)
        )  # test_prune_rows.py tests `prune_rows`: rows of NumPy's products depend on each other
        expected = logits(file, plain)
        for n_passes, one_pass in enumerate(FUSIONS[1:], 1):
            fused = one_pass(fused)
            assert fused != plain or (n_passes == 1 and not plain.paged)
            np.testing.assert_array_equal(logits(file, fused), expected, f"{n_passes} passes")


@pytest.mark.parametrize("name", TINY)
def test_fused_plan_has_the_expected_ops(name, tmp_path):
    tiny = TINY[name]
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        ops = Counter(step.op for step in fuse(trace(file)).steps)
    # Per layer: qkv, store, attend, output with residual, gate and up with glu, down with residual.
    expected = {"embed": 1, "linears": 4 * tiny.n_layers + 1, "store": tiny.n_layers, "attend": tiny.n_layers}
    expected |= {"output_rows": 2} | ({"scale": 1} if name == "granite" else {})
    assert ops == expected


def test_norms_with_other_epsilons_stay_separate_steps():
    shapes = {"token_embd": (10, 8), "q_norm": (4,), "k_norm": (4,)}
    p = Tracer("case", {f"{n}.weight": SimpleNamespace(type=GGMLType.F32, shape=x) for n, x in shapes.items()})
    x = p.embed("token_embd", width=8)
    rope = Rope(head_dim=4, n_rot=4, base=10000.0, style="neox")
    q, k = (p.rope(p.rms_norm(x, f"{name}_norm", eps=eps), rope) for name, eps in (("q", 1e-5), ("k", 1e-6)))
    p.output(p.attention(q, k, x, head_dim=4, scale=0.5))
    ops = Counter(step.op for step in fuse(p.plan()).steps)
    assert ops == {"embed": 1, "rms_norm": 2, "store": 1, "attend": 1}


def test_alibi_plan_rejects_image_rows(tmp_path):
    with open_gguf(write_tiny(FAMILIES["bloom"], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
    width = plan.values[plan.steps[0].output].width
    with pytest.raises(UnsupportedError, match="bloom models with ALiBi do not support images"):
        inject_embeddings(plan, width)


def test_parts_of_image_rows_are_added_to_the_layers_that_the_file_names(tmp_path):
    tiny = replace(TINY["granite"], name="deep", n_layers=4)

    def injected(mapping, parts):
        deep = replace(tiny, extra=tiny.extra | ({"deepstack_mapping": mapping} if mapping else {}))
        with open_gguf(write_tiny(deep, tmp_path / "tiny.gguf")) as file:
            return inject_embeddings(trace(file), parts * tiny.width)

    in_order, plain = injected([0, 1, 2, -1], 3), injected(None, 3)
    # The first layers, as without a mapping; but rows that follow a scale are not scaled.
    assert [step.attributes for step in in_order.steps if step.op == "scatter_rows"] == [
        step.attributes for step in plain.steps if step.op == "scatter_rows"
    ]
    later = injected([0, -1, 1, 2], 3)
    places = [
        (step.integer("part"), later.layers[later.steps.index(step) + 1])
        for step in later.steps
        if step.op == "scatter_rows"
    ]
    assert places[1:] == [(1, "blk.2"), (2, "blk.3")]
    with pytest.raises(ModelError, match="rows of 2 parts, but the granite model takes 3"):
        injected([0, -1, 1, 2], 2)
    with pytest.raises(ModelError, match=r"deepstack_mapping is \[0, 2, -1, -1\]; expected 4 integers"):
        injected([0, 2, -1, -1], 2)
