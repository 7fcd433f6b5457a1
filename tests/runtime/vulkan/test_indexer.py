"""An index on a device of Vulkan: the positions of the cpu backend, where a group has more than its threads hold."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.compressed_attention import COMPRESSIONS
from tests.cases.families import FAMILIES
from tests.cases.indexer import _choice
from tests.cases.ops import Case, Run, _tables, run
from tests.cases.tiny import write_tiny
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend
from woolly.runtime.vulkan.ops import attention, indexer

PAGES = tuple(range(23))
# Many rows, then one, a few, and some more behind more candidates than a group has threads.
LONG: tuple[Run, ...] = (((500, 0, PAGES),), ((200, 500, PAGES),), ((1, 700, PAGES),), ((5, 701, PAGES),))
CASES = {
    "heads-11": (11, 300, 1, True, "q4"),
    "each-of-11": (11, 200, 3, False, "f16"),
    "blocks-over-threads": (2, 2, 300, False, "f32"),
    "blocks": (9, 3, 50, False, "q8_0"),
}


def check(case, vulkan, folder):
    with case.open(folder) as file:
        plan, options = case.plan(file), Options(kv_type=case.kv_type, threads=1)
        found, wanted = (run(case, one.compile(plan, file.tensors, options)) for one in (vulkan, CpuBackend()))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.rare] if name in ("each-of-11", "blocks") else []) for name in CASES]
)
def test_many_candidates_match_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    heads, n, block, has_weights, kv_type = CASES[name]
    monkeypatch.setattr("tests.cases.indexer.HEAD", 36)
    # For some rows at once, one after another; not too many, for llvmpipe ends loops after 65,535 rounds in all.
    monkeypatch.setattr(indexer, "_SCORES", 1 << 16)
    monkeypatch.setattr(indexer, "MAX_CONTEXT", 1 << 10)
    tables = _tables(index_q=heads * 36, index_k=36, **({"index_weights": heads} if has_weights else {}))
    build = lambda p: _choice(p, n=n, block=block, has_weights=has_weights)  # noqa: E731
    check(Case(f"index_topk-{name}", "index_topk", tables, build, "exact", LONG, kv_type), vulkan, tmp_path)


# Of blocks that no index chooses: memory for the splits of all rows; for those of one row that is not far.
LIMITS = {"all": {"MAX_CONTEXT": 1 << 10}, "far": {"_MAX_SPLITS": 1, "_FEW_SPLITS": 1}}


@pytest.mark.parametrize("name", ["attend_compressed-f32-3-0", "attend_compressed-f16-20-0"])
@pytest.mark.parametrize("limits", LIMITS)
def test_blocks_before_the_latest_rows_match_the_cpu_backend(limits, name, vulkan, tmp_path, monkeypatch):
    for one, value in LIMITS[limits].items():
        monkeypatch.setattr(attention, one, value)
    check(COMPRESSIONS[name], vulkan, tmp_path)


MODELS = [
    *((name, "f16") for name in ("deepseek-v32", "minimax-m3", "deepseek4", "qwen4exp", "hy_v4")),
    *(("deepseek-v32", "q4"), ("minimax-m3", "q8_0/q4"), ("deepseek4", "q4"), ("deepseek4", "q8_0")),
]


@pytest.mark.parametrize(
    ("name", "kv_type"),
    [pytest.param(*one, marks=[pytest.mark.rare] if one[1] in ("q4", "q8_0") else []) for one in MODELS],
)
def test_batched_sequences_match_single_ones(name, kv_type, vulkan, tmp_path):
    tokens = np.random.RandomState(7).randint(0, 264, 70)
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(kv_type=kv_type, threads=1)
        program, cpu = (one.compile(plan, file.tensors, options) for one in (vulkan, CpuBackend()))
        wanted, texts = [], (tokens, tokens[5:45])
        for text in texts:
            batch = Batch.of([(text, 0, [0, 1, 2])], range(len(text)), slots=[(-1, 0)])
            wanted.append(cpu.run(batch, cpu.new_state(4, 1)).copy())
        state, begun, pages = program.new_state(8, 4), [0, 0], ([2, 0, 7], [5, 6, 3])
        # Many rows, one of each, a few, and many of one beside one of the other.
        for step, counts in enumerate(((50, 26), (1, 1), (3, 4), (16, 1))):
            ends = [at + n for at, n in zip(begun, counts, strict=True)]
            slots = [(i + 2 * (step % 2 ^ 1) if step else -1, i + 2 * (step % 2)) for i in range(2)]
            parts = [(x[at:end], at, own) for x, at, end, own in zip(texts, begun, ends, pages, strict=True)]
            found = program.run(Batch.of(parts, range(sum(counts)), slots=slots), state).copy()
            rows = np.concatenate([x[at:end] for x, at, end in zip(wanted, begun, ends, strict=True)])
            np.testing.assert_array_equal(found.view(np.uint32), rows.view(np.uint32))
            begun = ends


@pytest.mark.parametrize("name", ["deepseek4", "qwen4exp"])
def test_state_saved_within_a_prompt_continues_as_on_the_cpu(name, vulkan, tmp_path):
    tokens = np.random.RandomState(7).randint(0, 264, 40)
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
        plan, options = trace(file), Options(kv_type="f16", threads=1)
        program, cpu = (one.compile(plan, file.tensors, options) for one in (vulkan, CpuBackend()))
        wanted = cpu.run(Batch.of([(tokens, 0, [0, 1])], range(40), slots=[(-1, 0)]), cpu.new_state(2, 1)).copy()
        state = program.new_state(2, 4)
        program.run(Batch.of([(tokens[:25], 0, [0, 1])], [24], slots=[(-1, 0)], snapshots=[(8, 1), (21, 2)]), state)
        for slot, first in ((2, 22), (1, 9)):
            batch = Batch.of([(tokens[first:], first, [0, 1])], range(40 - first), slots=[(slot, 3)])
            found = program.run(batch, state).copy()
            np.testing.assert_array_equal(found.view(np.uint32), wanted[first:].view(np.uint32))


def test_images_with_chosen_positions_are_rejected(vulkan, tmp_path):
    with open_gguf(write_tiny(FAMILIES["minimax-m3"], tmp_path / "tiny.gguf")) as file:
        program = vulkan.compile(trace(file), file.tensors, Options(threads=1))
        batch = Batch.of([([1, 2, 3], 0, [0])], [2])
        seen = replace(batch, attn_ranges=np.array([[0, 3]] * 3, np.int32))
        with pytest.raises(ValueError, match="rows that choose positions see no others"):
            program.run(seen, program.new_state(1))
