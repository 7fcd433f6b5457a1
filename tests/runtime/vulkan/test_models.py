"""Whole models on a device of Vulkan: the logits of the cpu backend, bit for bit, whatever the chunks and the cache."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.mtp import RAW, opened_guesses
from tests.cases.tiny import write_tiny
from woolly.errors import UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.runtime import BACKENDS, Batch, Options, get_backend
from woolly.runtime.split import SplitBackend
from woolly.runtime.vulkan.ops import attention, linears
from woolly.runtime.vulkan.ops.attention import is_far as is_far_batch

TOKENS = np.random.RandomState(7).randint(0, 264, 70)
SOME = ("llama", "qwen2", "qwen3", "granite", "gemma2", "gemma3", "phi3", "olmo2")
NAMES = [name for name in SOME if name in FAMILIES]
# Their 32 to 64 layers are for engines that tell models apart by that number; here each layer is like one of the first.
DEEP = {"baichuan", "command-r-plus", "exaone4-window"}


def logits(program, chunks):
    state, parts, first = program.new_state(4, 2), [], 0
    for i, n in enumerate(chunks):
        part, slots = TOKENS[first : first + n], (i % 2 if i else -1, (i + 1) % 2)
        parts.append(program.run(Batch.of([(part, first, [2, 0, 3])], range(n), slots=[slots]), state).copy())
        first += n
    return np.concatenate(parts)


def both(vulkan, path, kv_type):
    """The programs of both backends."""
    file = open_gguf(path)
    plan, options = trace(file), Options(kv_type=kv_type, threads=1)
    return [one.compile(plan, file.tensors, options) for one in (vulkan, get_backend("cpu"))]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_model_matches_the_cpu_backend(name, kv_type, vulkan, tmp_path):
    program, cpu = both(vulkan, write_tiny(FAMILIES[name], tmp_path / "tiny.gguf"), kv_type)
    wanted = logits(cpu, [70])
    # Chunks that end anywhere take all kernels; the others are left to one type of the cache.
    for chunks in ([1, 1, 60, 1, 1, 5, 1], *(([70], [9] * 7 + [7]) if kv_type == "f16" else ())):
        np.testing.assert_array_equal(logits(program, chunks).view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "width", "ffn"),
    [(GGMLType.Q4_K, 256, 512), (GGMLType.Q8_0, 96, 160), (GGMLType.Q6_K, 2304, 256)],
    ids=["q4_k", "q8_0", "q6_k"],
)
def test_rows_quantized_by_norms_and_gates_match_the_cpu_backend(kind, width, ffn, vulkan, tmp_path):
    spec = replace(FAMILIES["llama"], width=width, ffn=ffn, type=kind, head_dim=16 if width == 96 else 64, n_layers=1)
    program, cpu = both(vulkan, write_tiny(spec, tmp_path / "tiny.gguf"), "f16")
    steps = program._core._emitter.launches
    kernels = {launch.kernel.removesuffix("_32").removesuffix("_256") for step in steps for launch in step}
    assert {"norm_quantize", "glu_quantize"} <= kernels and "glu" not in kernels
    wanted = logits(cpu, [70])
    np.testing.assert_array_equal(logits(program, [1, 60, 9]).view(np.uint32), wanted.view(np.uint32))
    # A run may end with the gates, and go on from there.
    state, batch = program.new_state(4, 2), Batch.of([(TOKENS[:9], 0, [2, 0, 3])], range(9))
    ops = [dict(step.attributes).get("epilogue") for step in program.running_plan.steps]
    after_gates = next(i for i, op in enumerate(ops) if str(op).startswith("glu:")) + 1
    program.run(batch, state, 0, after_gates)
    found = program.run(batch, state, after_gates)
    np.testing.assert_array_equal(found.view(np.uint32), wanted[:9].view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "width", "head"), [(GGMLType.Q4_K, 256, 64), (GGMLType.Q8_0, 96, 16)], ids=["q4_k", "q8_0"]
)
def test_rows_quantized_by_attention_of_few_rows_match_the_cpu_backend(kind, width, head, vulkan, tmp_path):
    """After two splits of positions; with many positions before it, a kernel of its own leaves them."""
    spec = replace(FAMILIES["llama"], width=width, ffn=256, type=kind, head_dim=head, n_layers=2)
    program, cpu = both(vulkan, write_tiny(spec, tmp_path / "tiny.gguf"), "f16")
    tokens, pages = np.random.RandomState(8).randint(0, 264, 141), list(range(5))
    states = [one.new_state(5) for one in (program, cpu)]
    for one, state in zip((program, cpu), states, strict=True):
        one.run(Batch.of([(tokens[:140], 0, pages)], [0]), state)
    core = program._core
    (attend, *_) = (i for i, step in enumerate(program.running_plan.steps) if step.op == "attend")
    kernels = [launch.kernel for launch in core._emitter.launches[attend] + core._emitter.launches[attend + 1]]
    assert any(name.startswith("merge_quantize_") for name in kernels)
    is_far = core._is_far
    for first in (140, 139):  # one row, then three, of which the last sees one split alone
        more = [(tokens[20:21], 20, pages)] if first < 140 else []
        last = Batch.of([(tokens[first:], first, pages), *more], [0])
        wanted = cpu.run(last, states[1]).copy()
        core._is_far = is_far
        found = [program.run(last, states[0]).copy()]
        program.run(last, states[0], 0, attend + 1)
        found.append(program.run(last, states[0], attend + 1).copy())
        core._is_far = lambda batch: True
        found.append(program.run(last, states[0]).copy())
        for rows in found:
            np.testing.assert_array_equal(rows.view(np.uint32), wanted.view(np.uint32))


def test_rows_with_more_positions_than_one_pass_are_far():
    def of(*positions):
        return Batch.of([([1], at, list(range(at // 32 + 1))) for at in positions], [0])

    assert [is_far_batch(of(at)) for at in (32767, 32768)] == [False, True]
    assert [is_far_batch(of(5, at)) for at in (8190, 8191)] == [False, True]
    assert not is_far_batch(of(*range(40000, 40009)))


def test_short_sequences_before_prompts_use_no_tiles():
    def of(*lengths, at=0):
        return Batch.of([([1] * n, at, list(range((at + n) // 32 + 1))) for n in lengths], [0])

    cases = {(1, 500): 1, (1, 31, 500): 32, (32, 500): 0, (500,): 0, (1, 200): 0, (1, 40, 1, 300): 42}
    assert {lengths: attention.n_front(of(*lengths)) for lengths in cases} == cases
    assert not any(is_far_batch(of(*lengths)) for lengths in cases)
    # Short ones behind the prompt, or too few rows for tiles behind them: all rows go one by one.
    assert all(is_far_batch(of(*lengths)) for lengths in ((500, 1), (1, 255), (1, 300, 1, 200)))
    # More positions than splits are computed side by side for: one row too many for that.
    assert [attention.n_front(of(1, 500, at=at)) for at in (7685, 7686)] == [1, 9]


def test_vocabulary_beyond_the_grid_uses_the_few_row_kernel(vulkan, tmp_path, monkeypatch):
    spec = replace(FAMILIES["llama"], width=256, ffn=96, type=GGMLType.Q8_0, head_dim=64, n_layers=1)
    path = write_tiny(spec, tmp_path / "tiny.gguf")
    monkeypatch.setattr(linears, "_MAX_GROUPS", 79)  # of 4 rows each; the vocabulary has 320
    program, cpu = both(vulkan, path, "f16")
    *layers, head = (
        [launch.kernel for launch in step if launch.kernel.startswith("linear_") and launch.dimensions(1, 1)]
        for step in program._core._emitter.launches
    )
    assert head == ["linear_few_q8_0"] and {name for step in layers for name in step} == {"linear_one_q8_0"}
    np.testing.assert_array_equal(logits(program, [9, 1]).view(np.uint32), logits(cpu, [10]).view(np.uint32))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NAMES])
def test_every_other_architecture_matches_the_cpu_backend(name, vulkan, tmp_path):
    tiny = replace(FAMILIES[name], n_layers=5) if name in DEEP else FAMILIES[name]
    program, cpu = both(vulkan, write_tiny(tiny, tmp_path / "tiny.gguf"), "f16")
    # Two pages and all kernels of linears; a second tile of rows is left to the models above.
    np.testing.assert_array_equal(logits(program, [38, 1, 9]).view(np.uint32), logits(cpu, [48]).view(np.uint32))


def test_rows_of_several_sequences_match_single_ones(vulkan, tmp_path):
    program, cpu = both(vulkan, write_tiny(FAMILIES["llama"], tmp_path / "tiny.gguf"), "f16")
    texts = [(TOKENS[:20], 0, [2]), (TOKENS[20:21], 0, [1]), (TOKENS[21:60], 0, [0, 3])]
    batch = Batch.of(texts, [19, 20, 59], slots=[(-1, i) for i in range(3)])
    found, wanted = (one.run(batch, one.new_state(4, 3)).copy() for one in (program, cpu))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize(("name", "kv_type"), [("llama", "f16"), ("qwen2", "q4")])
def test_cpu_layers_change_no_bit(name, kv_type, vulkan, tmp_path):
    path = write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        plan = trace(file)
        options = Options(kv_type=kv_type, gpu_layers=1, threads=1)
        program = SplitBackend(vulkan, True).compile(plan, file.tensors, options)
        wanted = logits(get_backend("cpu").compile(plan, file.tensors, Options(kv_type=kv_type, threads=1)), [70])
        assert len(program.about.shares) == 2
        np.testing.assert_array_equal(logits(program, [60, 1, 9]).view(np.uint32), wanted.view(np.uint32))


def test_4_bit_keys_without_bias_match_the_cpu_backend(vulkan, tmp_path):
    program, cpu = both(vulkan, write_tiny(FAMILIES["qwen2"], tmp_path / "tiny.gguf"), "q4")
    assert any(step.by_role("k_bias") for step in program.running_plan.steps)
    np.testing.assert_array_equal(
        logits(program, [60, 1, 9]).view(np.uint32), (wanted := logits(cpu, [70])).view(np.uint32)
    )
    # Pages that are saved and read into other places.
    old, new = program.new_state(2, 2), program.new_state(3, 2)
    program.run(Batch.of([(TOKENS[:40], 0, [1, 0])], [0]), old)
    for page, place in ((1, 0), (0, 2)):
        new.write_page(place, old.read_page(page))
    found = program.run(Batch.of([(TOKENS[40:41], 40, [0, 2])], [0]), new)
    np.testing.assert_array_equal(found.view(np.uint32), wanted[40:41].view(np.uint32))


def test_archive_without_a_cache_type_rejects_it_by_name(vulkan, tmp_path, monkeypatch):
    names = [name for name in attention.open_archive().names() if name != "store_any"]
    monkeypatch.setattr(attention, "open_archive", lambda: SimpleNamespace(names=lambda: names))
    with pytest.raises(UnsupportedError, match="Vulkan and Metal do not support kv_type q4"):
        both(vulkan, write_tiny(FAMILIES["llama"], tmp_path / "tiny.gguf"), "q4")


@pytest.mark.parametrize("name", RAW)
def test_block_that_reads_unnormalized_rows_matches_the_cpu_backend(name, vulkan, tmp_path, monkeypatch):
    monkeypatch.setitem(BACKENDS, "vulkan", lambda: vulkan)
    path = write_tiny(RAW[name], tmp_path / "tiny.gguf")
    found, wanted = (opened_guesses(path, backend, "f16") for backend in ("vulkan", "cpu"))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
