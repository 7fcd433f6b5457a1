"""Parts of a plan, run one after another, give the bits of the whole."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import Tiny, write_tiny
from woolly.errors import RequestError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan.passes import FUSIONS, balance_layers, fuse, layer_split_points, merge_parts, prune_rows, slice_layers
from woolly.plan.passes.partition import layer_bytes
from woolly.runtime import Batch, Options, get_backend

TOKENS = np.random.RandomState(7).randint(0, 264, 40)
# Layers of these share values or entries of the state with others, which must not travel; olmo, talkie and models of
# several streams begin layers without a norm's weight; hrm_text runs its layers in nested loops.
WHOLE = {"deepseek4", "glm5next", "hy_v4", "qwen4exp", "arwkv7", "arwkv7-bare", "gemma3n", "gemma4-e", "hrm_text"}
WHOLE |= {"olmo", "rwkv7", "talkie"}


def in_parts(programs, batch, states):
    """Logits of a batch that goes through the parts in turn."""
    value = None
    for program, state in zip(programs, states, strict=True):
        rows = batch if value is None else replace(batch, hidden=value, is_hidden_normed=True)
        value = program.run(rows, state).copy()
    return value


def parts_of(plan):
    """The plan cut at each layer where it can be, or at two of many."""
    layers = sorted(layer_split_points(plan).keys() - {0})
    edges = [0, *(layers if len(layers) < 8 else layers[:2]), len(layer_bytes(plan))]
    return [slice_layers(plan, a, b - 1) for a, b in itertools.pairwise(edges)]


def test_passes_fuse_the_same_in_parts_and_in_the_complete_plan(tmp_path):
    uncut = set()
    passes = [one_pass for one_pass in FUSIONS if one_pass is not prune_rows]  # parts keep all rows of their values
    for name, tiny in FAMILIES.items():
        with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
            plan = trace(file)
        parts = parts_of(plan)
        if len(parts) == 1:
            uncut.add(name)
        else:
            assert merge_parts(plan, [fuse(part).steps for part in parts]) == replace(fuse(plan, passes), draft=None), (
                name
            )
            assert sum(part.bytes_per_token(1) for part in parts) == plan.bytes_per_token(1)
            assert sum(part.bytes_per_sequence for part in parts) == plan.bytes_per_sequence
    assert uncut == WHOLE


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - WHOLE)[::6])
def test_parts_of_a_model_give_its_bits(name, tmp_path):
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(threads=1)
        whole = get_backend("cpu").compile(plan, file.tensors, options)
        programs = [get_backend("cpu").compile(part, file.tensors, options) for part in parts_of(plan)]
        state, states = whole.new_state(4, 4), [program.new_state(4, 4) for program in programs]
        for first, slots in ((0, (-1, 0)), (33, (0, 1))):  # a prompt, then more of it
            rows = TOKENS[first : 33 if first == 0 else 40]
            batch = Batch.of([(rows, first, [2, 0])], range(len(rows)), slots=[slots])
            np.testing.assert_array_equal(in_parts(programs, batch, states), whole.run(batch, state))


def test_part_takes_its_share_of_weights_and_state(tmp_path):
    with open_gguf(write_tiny(Tiny("six", "llama", n_layers=6), tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
        a, b = slice_layers(plan, 0, 1), slice_layers(plan, 2, 5)
        assert not {name for name in a.weights if name.startswith("blk.")} & set(b.weights)
        assert [entry.heads for entry in a.state] == [2, 2, 0, 0, 0, 0]
        program, whole = (get_backend("cpu").compile(part, file.tensors, Options(threads=1)) for part in (a, plan))
        assert program.weight_stats().n_bytes < whole.weight_stats().n_bytes / 2
        assert program.new_state(2).n_bytes * 3 == whole.new_state(2).n_bytes


def test_shares_follow_memory_and_each_part_has_a_layer(tmp_path):
    with open_gguf(write_tiny(Tiny("eight", "llama", n_layers=8, tied=False), tmp_path / "tiny.gguf")) as file:
        plan = trace(file)
    assert balance_layers(plan, [1]) == [(0, 7)]
    assert balance_layers(plan, [10, 10]) == [(0, 3), (4, 7)]
    (first, _), (second, last) = balance_layers(plan, [30, 10])
    assert (first, last) == (0, 7) and second > 4
    assert balance_layers(plan, [1, 10**9, 1]) == [(0, 0), (1, 6), (7, 7)]
    assert balance_layers(plan, [1] * 8) == [(i, i) for i in range(8)]
    assert sum(layer_bytes(plan)) >= sum(weight.n_bytes for weight in plan.weights.values())
    with pytest.raises(RequestError, match="9 stages are given, but this llama model can be cut into at most 8 parts"):
        balance_layers(plan, [1] * 9)
    with pytest.raises(RequestError, match="layers 3 to 9 of 8"):
        slice_layers(plan, 3, 9)


def test_model_with_values_shared_between_layers_is_rejected(tmp_path):
    with (
        open_gguf(write_tiny(FAMILIES["rwkv7"], tmp_path / "tiny.gguf")) as file,
        pytest.raises(RequestError, match="this rwkv7 model cannot be cut"),
    ):
        balance_layers(trace(file), [1, 1])
