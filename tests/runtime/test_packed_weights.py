"""Packed weights: a byte budget that holds, panels made when first used, and counts that tell the truth."""

import gc
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cases.tiny import TINY, write_tiny
from tests.cases.weights import TYPES, random_weight
from woolly import _native
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend

LLAMA = replace(TINY["llama"], type=GGMLType.Q8_0)
BATCH = Batch.of([([3, 1, 4, 1, 5], 0, [0])])
N_MATRICES = 2 * 7 + 1  # q, k, v, output, gate, up, down of two layers, and the logits


def compiled(folder, tiny=LLAMA, **options):
    file = open_gguf(write_tiny(tiny, folder / "tiny.gguf"))
    return CpuBackend().compile(trace(file), file.tensors, Options(threads=2, **options))


def packed_bytes(program):
    """Bytes of each matrix that a linear reads, in order of use, rows rounded up to whole panels of 16."""
    return {
        weight.name: -(-weight.shape[0] // 16) * 16 * weight.type.row_bytes(weight.shape[1])
        for step in program.running_plan.steps
        if step.op == "linears"
        for weight in step.by_role("weight")
    }


def panels(program):
    """Panels that are packed so far, of each matrix."""
    return {name: program._native.panels_done(index) for name, (index,) in program._steps.matrices.items()}


def test_without_budget_every_linear_matrix_is_kept(tmp_path):
    program = compiled(tmp_path)
    assert program.weight_stats().n_bytes == sum(packed_bytes(program).values())
    for runs in (1, 2):
        program.run(BATCH, program.new_state(1))
        stats = program.weight_stats()
        assert (stats.hits, stats.misses, stats.evictions) == (runs * N_MATRICES, 0, 0)


def test_panels_are_packed_when_a_step_first_needs_them(tmp_path):
    program = compiled(tmp_path)
    assert sum(panels(program).values()) == 0
    state = program.new_state(1)
    program.run(BATCH, state, 0, 2)  # the embedding, then q, k and v
    done = {name: n for name, n in panels(program).items() if n}
    assert done == {"blk.0.attn_q.weight": 4, "blk.0.attn_k.weight": 2, "blk.0.attn_v.weight": 2}
    program.run(BATCH, state)
    sizes = {name: -(-program.plan.weights[name].shape[0] // 16) for name in packed_bytes(program)}
    assert {name: n for name, n in panels(program).items() if n} == sizes


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_budget_is_respected_and_goes_to_first_users(share, tmp_path):
    sizes = packed_bytes(compiled(tmp_path))
    budget = int(share * sum(sizes.values()))
    program = compiled(tmp_path, weight_memory=budget)
    program.run(BATCH, program.new_state(1))
    kept, left = [], budget
    for name, size in sizes.items():
        if size <= left:
            kept.append(name)
            left -= size
    stats = program.weight_stats()
    assert stats.n_bytes == budget - left <= budget
    assert (stats.hits, stats.misses) == (len(kept), N_MATRICES - len(kept))
    assert sorted(name for name, n in panels(program).items() if n) == sorted(kept)


def test_run_in_parts_counts_each_read_once(tmp_path):
    program = compiled(tmp_path, weight_memory=0)
    state, n = program.new_state(1), len(program.running_plan.steps)
    for first in range(n):
        program.run(BATCH, state, first, first + 1)
    assert program.weight_stats().misses == N_MATRICES


def test_tied_output_table_is_kept_once(tmp_path):
    program = compiled(tmp_path, tiny=replace(TINY["granite"], type=GGMLType.Q4_0))
    sizes = packed_bytes(program)
    assert "token_embd.weight" in sizes
    assert program.weight_stats().n_bytes == sum(sizes.values())


def test_rejected_batch_is_not_counted(tmp_path):
    program = compiled(tmp_path)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        program.run(replace(BATCH, tokens=BATCH.tokens + 1000), program.new_state(1))
    assert program.weight_stats().hits == 0


@pytest.mark.parametrize("rows", [16, 33])
@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_packing_moves_bits_and_loses_none(type, rows):
    columns = 3 * max(type.block_size, 5)
    raw = random_weight(np.random.default_rng(1), type, rows, columns)
    out = np.full(-(-rows // 16) * 16 * type.row_bytes(columns) + 8, 0xAA, np.uint8)
    _native.pack(int(type), rows, columns, raw.data.reshape(-1), out)
    assert (out[-8:] == 0xAA).all()  # nothing is written behind the panels
    out = out[:-8]
    assert np.unpackbits(out).sum() == np.unpackbits(raw.data).sum()
    if type.name not in (
        "Q5_0",
        "Q5_1",
        "Q2_K",
        "Q3_K",
        "Q5_K",
        "Q6_K",
        "TQ2_0",
    ):  # theirs are fields, the rest is bytes
        padding = np.zeros(out.size - raw.data.size, np.uint8)
        np.testing.assert_array_equal(np.sort(out), np.sort(np.concatenate([raw.data.reshape(-1), padding])))


def mapped_kib(path):
    """Memory of this process that is mapped from a file, in KiB."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if " " in line.split(":")[0]:  # a mapping's first line ends with its file
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is mapped")
def test_file_pages_are_released_after_packing(tmp_path):
    tiny = replace(LLAMA, ffn=16384)
    file = open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf"))
    program = CpuBackend().compile(trace(file), file.tensors, Options(threads=2))
    packed = sum(packed_bytes(program).values()) // 1024
    assert packed > 4000
    for _ in range(2):  # nothing reads them again
        program.run(BATCH, program.new_state(1))
        assert mapped_kib(tmp_path / "tiny.gguf") < packed // 4
    kept = compiled(tmp_path, tiny=tiny, weight_memory=0)
    kept.run(BATCH, kept.new_state(1))
    assert mapped_kib(tmp_path / "tiny.gguf") > packed // 2  # what is packed anew each time stays mapped


def test_weights_are_packed_ahead_and_a_run_takes_over(tmp_path):
    program = compiled(tmp_path)
    want = program.run(BATCH, program.new_state(1)).copy()
    sizes = {name: -(-program.plan.weights[name].shape[0] // 16) for name in packed_bytes(program)}
    for wait in (True, False):
        program = compiled(tmp_path)
        program.load_weights()
        deadline = time.monotonic() + 60
        while wait and sum(panels(program).values()) < sum(sizes.values()) and time.monotonic() < deadline:
            time.sleep(0.001)
        if wait:
            assert {name: n for name, n in panels(program).items() if n} == sizes
        np.testing.assert_array_equal(program.run(BATCH, program.new_state(1)), want)
        program.load_weights()  # has nothing left to do
        program.close()


def test_program_dropped_while_preparing_frees_its_file(tmp_path):
    for _ in range(20):
        program = compiled(tmp_path)
        program.load_weights()
        del program
    gc.collect()
    assert mapped_kib(tmp_path / "tiny.gguf") == 0
