"""Placement and barriers: no value is written over while it is needed, no thread reads what another still writes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.tiny import TINY, write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import Plan, Step, Value
from woolly.plan.passes import FUSIONS, fuse
from woolly.plan.passes.plan_memory import barriers, plan_memory


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """The plan of every tiny model, fused by the first passes, by two, ... by all; by name."""
    out = {}
    for name, tiny in TINY.items():
        path = write_tiny(replace(tiny, n_layers=3), tmp_path_factory.mktemp(name) / "tiny.gguf")
        with open_gguf(path) as file:
            plan = trace(file)
        out[name, 0] = plan
        for n, one_pass in enumerate(FUSIONS, 1):
            plan = one_pass(plan)
            out[name, n] = plan
    return out


NAMES = [(name, n) for name in TINY for n in range(len(FUSIONS) + 1)]


def lifetimes(plan):
    """Steps from the one that makes a value to the last that reads it; the result lives on."""
    first, last = {}, {}
    for index, step in enumerate(plan.steps):
        for value in (*step.inputs, *step.outputs):
            first.setdefault(value, index)
            last[value] = index
    last[plan.steps[-1].outputs[-1]] = len(plan.steps)
    return {value: (first[value], last[value]) for value in first}


def check_placement(plan, rows):
    layout = plan_memory(plan, rows)
    alive = lifetimes(plan)
    assert set(layout.offsets) == set(alive)
    regions = {v: (layout.offsets[v], layout.offsets[v] + 4 * rows * plan.values[v].width) for v in layout.offsets}
    for value, (start, end) in regions.items():
        assert start % 64 == 0
        assert 0 <= start < end <= layout.n_bytes
        for other, (other_start, other_end) in regions.items():
            if value < other and alive[value][0] <= alive[other][1] and alive[other][0] <= alive[value][1]:
                assert end <= other_start or other_end <= start, f"v{value} and v{other} are needed at the same time"
    return layout


@settings(max_examples=60, deadline=None)
@given(key=st.sampled_from(NAMES), rows=st.integers(1, 600))
def test_simultaneously_live_values_never_overlap(plans, key, rows):
    check_placement(plans[key], rows)


@st.composite
def random_plans(draw):
    """Steps that read any values made before, with any widths."""
    values, steps = [Value(0, draw(st.integers(1, 40)), "batch")], [Step("embed", (), (0,), (), (), "")]
    for _ in range(draw(st.integers(1, 14))):
        inputs = tuple(draw(st.lists(st.sampled_from(range(len(values))), max_size=3)))
        outputs = tuple(range(len(values), len(values) + draw(st.integers(1, 2))))
        values += [Value(v, draw(st.integers(1, 40)), "batch") for v in outputs]
        steps.append(Step("add", inputs, outputs, (), (), ""))
    return Plan("random", tuple(steps), tuple(values), ())


@settings(deadline=None)
@given(plan=random_plans(), rows=st.integers(1, 9))
def test_any_plan_is_placed_with_the_needed_barriers(plan, rows):
    layout = check_placement(plan, rows)
    check_barriers(plan, layout)


def memory(plan, layout, step):
    """(reads, writes) of a step as sets of ranges: bytes of the arena, caches and shared scratch by name."""
    span = lambda v: ("arena", layout.offsets[v], layout.offsets[v] + layout.sizes[v])  # noqa: E731
    reads, writes = [span(v) for v in step.inputs], [span(v) for v in step.outputs]
    if step.op == "linears":  # the prepared input
        writes.append(("activations", 0, 1))
    if step.op == "store":
        writes.append((f"state {step.integer('entry')}", 0, 1))
    if step.op == "attend":
        reads.append((f"state {step.integer('entry')}", 0, 1))
        writes.append(("partials", 0, 1))
    return reads, writes


def collide(these, those):
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in these for b in those)


def check_barriers(plan, layout):
    waits = barriers(plan, layout)
    assert len(waits) == len(plan.steps)
    accesses = [memory(plan, layout, step) for step in plan.steps]
    for early, (reads, writes) in enumerate(accesses):
        for late in range(early + 1, len(plan.steps)):
            if waits[late]:
                break  # all threads have finished `early`
            late_reads, late_writes = accesses[late]
            assert not collide(writes, late_reads), f"step {late} reads what step {early} still writes"
            assert not collide(writes, late_writes), f"steps {early} and {late} write the same memory"
            assert not collide(reads, late_writes), f"step {late} writes what step {early} still reads"
    return waits


@pytest.mark.parametrize("key", NAMES, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 512])
def test_steps_without_a_barrier_share_no_written_memory(key, rows, plans):
    check_barriers(plans[key], plan_memory(plans[key], rows))


def test_layer_has_at_most_six_barriers(plans):
    plan = plans["llama", len(FUSIONS)]
    waits = barriers(plan, plan_memory(plan, 512))
    stores = [index for index, step in enumerate(plan.steps) if step.op == "store"]
    for this, following in pairwise(stores):
        assert sum(waits[this:following]) <= 6


def test_values_of_different_layers_share_memory(plans):
    short = plans["llama", len(FUSIONS)]
    values = {value for step in short.steps for value in step.outputs}
    result = short.steps[-1].outputs[-1]
    apart = sum(plan_memory(short, 64).sizes[v] for v in values - {result})
    assert plan_memory(short, 64).offsets[result] < apart / 3


def test_result_is_placed_after_all_others(plans):
    for plan in plans.values():
        layout = plan_memory(plan, 16)
        result = plan.steps[-1].outputs[-1]
        others = [layout.offsets[v] + layout.sizes[v] for v in layout.offsets if v != result]
        assert layout.offsets[result] >= max(others)


def test_fusing_all_together_equals_fusing_one_by_one(plans):
    for name in TINY:
        assert fuse(plans[name, 0]) == plans[name, len(FUSIONS)]


@pytest.mark.parametrize("name", TINY)
def test_inputs_of_a_joined_step_do_not_overlap_the_next_output(plans, name):
    plan = plans[name, len(FUSIONS)]
    joined = [i for i, step in enumerate(plan.steps[:-1]) if step.op == "store"]
    layout = plan_memory(plan, 5, joined=joined)
    for index in joined:
        for read in plan.steps[index].inputs:
            assert not any(layout.overlap(read, written) for written in plan.steps[index + 1].outputs)
