"""Attention of few rows with keys and values in shared memory: any place of the splits, heads and windows."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.runtime.vulkan.test_models import both
from woolly.runtime import Batch

KERNEL = "attend_staged_f16"
LLAMA = FAMILIES["llama"]
SHAPES = {
    "80": replace(LLAMA, n_heads=3, n_kv_heads=1, head_dim=80, n_layers=1, ffn=64),
    "128-teams": replace(LLAMA, n_heads=12, n_kv_heads=2, head_dim=128, n_layers=1, ffn=64),
    "norms": replace(FAMILIES["qwen3"], n_heads=4, n_kv_heads=4, head_dim=48, n_layers=1, ffn=64),
    "window": replace(FAMILIES["gemma3"], n_layers=2, ffn=64),
    "sinks": replace(FAMILIES["gpt-oss"], ffn=64),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rows_after_some_and_many_splits_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    program, cpu = both(vulkan, write_tiny(SHAPES[name], tmp_path / "tiny.gguf"), "f16")
    device, launched = program._core.device, []
    launch = device.launch
    monkeypatch.setattr(device, "launch", lambda kernel, *rest: launched.append(kernel) or launch(kernel, *rest))
    tokens = np.random.RandomState(9).randint(0, 264, 300)
    # The cache of 33 splits is that of five pages again and again; each row has a page of its own behind them.
    few, many = [list(range(10)), [*range(10, 20)]], [*([0, 1, 2, 3, 4] * 26), 20, 21]
    rows = [
        Batch.of([(tokens[250:251], 250, few[0])], [0]),
        Batch.of([(tokens[251:252], 251, few[0]), (tokens[127:128], 127, few[1])], [0, 1]),
        Batch.of([(tokens[128:129], 128, few[1])], [0]),
        # A graph for up to four rows, the last of which is not there.
        Batch.of([(tokens[:1], 252, few[0]), (tokens[2:3], 129, few[1]), (tokens[:1], 1, [20])], [0, 1, 2]),
        Batch.of([(tokens[:1], 4160, many)], [0]),
        Batch.of([(tokens[1:2], 4161, many)], [0]),
    ]
    found = []
    for one in (cpu, program):
        state = one.new_state(22)
        one.run(Batch.of([(tokens[:250], 0, few[0]), (tokens[:127], 0, few[1])], [0, 1]), state)
        found.append([one.run(batch, state).copy() for batch in rows])
    assert KERNEL in launched
    for mine, its in zip(*found, strict=True):
        np.testing.assert_array_equal(mine.view(np.uint32), its.view(np.uint32))
