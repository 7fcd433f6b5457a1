"""Rows that nobody reads are not computed behind the last step that mixes rows, and those that are have their bits."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Tracer
from woolly.plan.passes import FUSIONS, prune_rows, slice_layers
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend
from woolly.runtime.cpu.program import CpuProgram

IDS = np.random.RandomState(7).randint(0, 264, 50).tolist()


def logits(program, *wanted):
    """Logits of two prompts in one batch for each list of wanted rows, then of more rows of the first."""
    state, slots = program.new_state(4, 3), [(-1, 0), (-1, 1)]
    sequences = [(IDS[:30], 0, [2, 1]), (IDS[30:40], 0, [3])]
    out = [program.run(Batch.of(sequences, rows, slots=slots), state).copy() for rows in wanted]
    out.append(program.run(Batch.of([(IDS[40:], 30, [2, 1])], slots=[(0, 2)]), state).copy())
    return np.concatenate(out)


def traced(build):
    tensors = {f"{n}.weight": SimpleNamespace(type=GGMLType.F32, shape=(8, 8)) for n in ("token_embd", "w")}
    p = Tracer("case", tensors)
    p.skip("w")  # some cases have no product
    p.output(build(p, p.embed("token_embd", width=8)))
    return p.plan()


def attended(p, x):
    return p.attention(x, x, x, head_dim=4, scale=0.5)


@pytest.mark.parametrize("name", FAMILIES)
def test_wanted_row_has_the_bits_it_has_among_all_rows(name, tmp_path):
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plan, options, wanted = trace(file), Options(threads=1), ([5, 29, 39], [], [39])
        plain = CpuProgram(plan, file.tensors, options, [one for one in FUSIONS if one is not prune_rows])
        cut_early = CpuProgram(plan, file.tensors, options)
        np.testing.assert_array_equal(logits(cut_early, *wanted), logits(plain, *wanted))
        # NumPy's products have the same bits only if they have the same rows.
        reference = [get_backend("reference").compile(one, file.tensors, options) for one in (prune_rows(plan), plan)]
        got, expected = (logits(program, range(40))[:40] for program in reference)
        np.testing.assert_array_equal(got, expected)
    assert prune_rows(prune_rows(plan)) == prune_rows(plan) != plan


@pytest.mark.parametrize("name", TINY)
def test_steps_after_the_last_attention_compute_only_wanted_rows(name, tmp_path):
    with open_gguf(write_tiny(TINY[name], tmp_path / "tiny.gguf")) as file:
        plan = prune_rows(trace(file))
    last = max(index for index, step in enumerate(plan.steps) if step.op == "attention")
    rows = [plan.values[value].rows for step in plan.steps[last + 1 :] for value in step.outputs]
    assert set(rows) == {"output"}
    assert [step.op for step in plan.steps[last + 1 : last + 3]] == ["output_rows", "output_rows"]


def test_plans_read_by_others_in_full_are_unchanged(tmp_path):
    with open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
    drafted = replace(plan, draft=plan)
    for one in (drafted, *(slice_layers(plan, layer, layer) for layer in range(2)), slice_layers(plan, 0, 1)):
        assert prune_rows(one) is one


@pytest.mark.parametrize(
    "build",
    [
        lambda p, x: p.output_rows(attended(p, x)),
        lambda p, x: p.output_rows(p.unary(attended(p, x), "silu")),
        lambda p, x: p.pool(p.linear(attended(p, x), "w", width=8), "mean"),
        lambda p, x: attended(p, p.linear(x, "w", width=8)),
        lambda p, x: p.output_rows(attended(p, p.linear(x, "w", width=8))),
    ],
    ids=["nothing-behind", "no-matrix-behind", "pooled", "no-rows-picked", "matrix-before"],
)
def test_plans_without_products_after_the_last_attention_are_unchanged(build):
    plan = traced(build)
    assert prune_rows(plan) is plan


def test_value_read_by_all_rows_is_computed_for_all_rows():
    def build(p, x):
        y = p.linear(x, "w", width=8)
        return p.output_rows(p.add(p.linear(attended(p, y), "w", width=8), y))

    plan = prune_rows(traced(build))
    ops = [(step.op, plan.values[step.output].rows) for step in plan.steps]
    assert ops == [
        ("embed", "batch"),
        ("linear", "batch"),
        ("attention", "batch"),
        ("output_rows", "output"),
        ("output_rows", "output"),
        ("linear", "output"),
        ("add", "output"),
    ]
