"""Uncomputable input gives a one-line error, and the program keeps working."""

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from tests.cases.batches import MAX_ROWS, N_PAGES, TWO, each_bad_batch, ints
from tests.cases.ops import CaseTracer
from tests.cases.tiny import N_VOCAB, TINY, write_tiny
from tests.cases.weights import random_weight
from woolly import LLM, _native
from woolly.errors import ModelError, PlanError, RequestError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.models import trace
from woolly.plan import Step, Weight
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend, kernel_level
from woolly.runtime.cpu import program as cpu_program
from woolly.runtime.cpu.stale_build import advice_if_old
from woolly.runtime.gpu.graph_runner import GraphRunner
from woolly.runtime.reference import ReferenceBackend
from woolly.runtime.weight_views import WeightViews, check_weights


def compiled(tiny, folder, **options):
    file = open_gguf(write_tiny(tiny, folder / "tiny.gguf"))
    return CpuBackend().compile(trace(file), file.tensors, Options(**{"threads": 2, "max_rows": MAX_ROWS} | options))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(TINY["llama"], tmp_path_factory.mktemp("llama"))


@each_bad_batch
def test_mismatched_batch_is_rejected_and_the_next_one_works(program, changes, message):
    state = program.new_state(N_PAGES)
    before = program.run(TWO, state).copy()
    with pytest.raises(ValueError, match=message):
        program.run(replace(TWO, **changes), state)
    np.testing.assert_array_equal(program.run(TWO, state), before)


def test_batch_of_too_many_or_no_rows_is_rejected(program):
    state = program.new_state(4)
    with pytest.raises(ValueError, match="a batch of 9 rows, where 1 to 8 fit"):
        program.run(Batch.of([([1] * 9, 0, [0])]), state)
    with pytest.raises(ValueError, match="zero-size"):
        program.run(replace(TWO, tokens=ints(), positions=ints()), state)
    assert program.run(Batch.of([([1] * 8, 0, [0])]), state).shape == (1, N_VOCAB)


def test_cache_of_another_plan_is_rejected(program, tmp_path):
    others = [replace(TINY["llama"], n_layers=1), replace(TINY["llama"], n_kv_heads=1), TINY["qwen3"]]
    for tiny in others:
        state = compiled(tiny, tmp_path).new_state(4)
        with pytest.raises(ValueError, match="the cache was made for another plan"):
            program.run(TWO, state)
    program.run(TWO, program.new_state(4))


def test_steps_outside_the_plan_are_rejected(program):
    n = len(program.running_plan.steps)
    for first, last in ((-1, 2), (2, 2), (3, 2), (0, n + 1), (n, n + 1)):
        with pytest.raises(PlanError, match="not a part of a plan"):
            program.run(TWO, program.new_state(4), first, last)
        with pytest.raises(ValueError, match="steps outside the plan"):
            native_run(program._native, program.new_state(4).native, first, last)


def native_run(native, cache, first, last):
    table = np.zeros((256, 8), np.float32)
    b = TWO
    native.run(cache, b.tokens, b.positions, b.offsets, b.pages, b.output_rows, table, table, first, last)


def test_isa_missing_on_this_machine_is_rejected(tmp_path, monkeypatch):
    with pytest.raises(RequestError, match=r"kernel level 'avx9' cannot run on this machine; it can run: .*scalar"):
        compiled(TINY["llama"], tmp_path, level="avx9")
    monkeypatch.setenv("WOOLLY_ISA", "mmx")
    with pytest.raises(RequestError, match="kernel level 'mmx' cannot run"):
        compiled(TINY["llama"], tmp_path)
    with pytest.raises(ValueError, match="kernel level 'mmx' cannot run here"):
        _native.Program("mmx", 1, 8, 64, 128)


def test_best_isa_is_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("WOOLLY_ISA", raising=False)
    assert _native.kernel_levels()[-1] == "scalar"
    assert kernel_level() == _native.kernel_levels()[0]
    monkeypatch.setenv("WOOLLY_ISA", "scalar")
    assert compiled(TINY["llama"], tmp_path).about.level == "scalar"
    assert kernel_level(_native.kernel_levels()[0]) == _native.kernel_levels()[0]  # what is asked for here wins


def test_build_of_another_machine_gives_one_warning(monkeypatch, caplog):
    monkeypatch.delenv("WOOLLY_ISA", raising=False)
    cpu_program._warn_of_scalar.cache_clear()
    monkeypatch.setattr(_native, "kernel_levels", lambda: ["scalar"])
    monkeypatch.setattr(_native, "cpu_features", lambda: ["sse2"])  # a CPU that has nothing else
    assert kernel_level() == "scalar" and caplog.text == ""
    monkeypatch.setattr(_native, "cpu_features", lambda: ["avx2", "f16c", "fma", "sse2"])
    assert kernel_level("scalar") == "scalar" and caplog.text == ""  # somebody wants it so
    for _ in range(3):
        assert kernel_level() == "scalar"
    assert [record.getMessage().count("Woolly was built on another machine") for record in caplog.records] == [1]
    cpu_program._warn_of_scalar.cache_clear()


def test_minimum_isa_matches_native_code():
    needs = (Path(__file__).resolve().parents[2] / "native" / "cpu" / "kernels" / "isa_requirements.h").read_text()
    least = [{*re.findall(r'"(\w+)"', text)} for text in re.findall(r'{"(?:avx2|neon)", {(.*?)}}', needs)]
    assert least == [*cpu_program._MIN_FEATURES]


def test_heads_that_a_cache_cannot_hold_are_rejected(tmp_path):
    with pytest.raises(UnsupportedError, match=r"heads of 578 columns do not fit the cache.*up to 576"):
        compiled(replace(TINY["llama"], head_dim=578), tmp_path)
    compiled(replace(TINY["llama"], head_dim=576), tmp_path, kv_type="q8_0")


EMBED, UP, NORM = "token_embd.weight", "blk.0.ffn_up.weight", "output_norm.weight"
OTHERS = [
    ({"ffn": 192}, UP, rf"'{UP}' is F32 \(192, 64\), where the plan's step \(\w+.py:\d+\) has F32 \(96, 64\)"),
    ({"type": GGMLType.F16}, UP, rf"'{UP}' is F16 \(96, 64\), .* has F32 \(96, 64\); open the model with the file"),
    ({"width": 128}, EMBED, rf"'{EMBED}' is F32 \(320, 128\), .* has F32 \(320, 64\)"),  # wider ones end in a signal
    ({"width": 128}, NORM, rf"'{NORM}' is F32 \(128,\), .* has F32 \(64,\)"),
]


@pytest.mark.parametrize("changes, name, message", OTHERS)
def test_tensor_with_a_shape_or_type_unlike_its_plan_is_rejected(changes, name, message, tmp_path):
    planned = open_gguf(write_tiny(TINY["llama"], tmp_path / "planned.gguf"))
    other = open_gguf(write_tiny(replace(TINY["llama"], **changes), tmp_path / "other.gguf"))
    plan, tensors = trace(planned), {**planned.tensors, name: other.tensors[name]}
    for backend in (CpuBackend(), ReferenceBackend()):
        with pytest.raises(ModelError, match=message):
            backend.compile(plan, tensors, Options(threads=1, max_rows=MAX_ROWS))
    with pytest.raises(ModelError, match=message):
        GraphRunner(MagicMock(), plan, None, WeightViews(tensors), Options(max_rows=MAX_ROWS))  # of any GPU


def test_rows_outside_a_tensor_are_rejected(tmp_path):
    raws = [random_weight(np.random.default_rng(0), GGMLType.F32, n, 32) for n in (8, 6)]
    files = []
    for i, raw in enumerate(raws):
        writer = GGUFWriter(tmp_path / f"{i}.gguf")
        writer.add_raw_tensor("x.weight", raw.type, raw.shape, raw.data)
        writer.write()
        files.append(open_gguf(writer.path))
    view = Weight("x.weight[4:8]", GGMLType.F32, (4, 32))
    plan = SimpleNamespace(steps=[Step("embed", (), (0,), (view,), (), "x.py:1")])
    check_weights(plan, WeightViews(files[0].tensors))
    with pytest.raises(ModelError, match=r"'x\.weight\[4:8\]' is F32 \(2, 32\), .* \(x\.py:1\) has F32 \(4, 32\)"):
        check_weights(plan, WeightViews(files[1].tensors))


def case_of(folder, tensors, build, **options):
    writer = GGUFWriter(folder / "case.gguf")
    for name, raw in tensors.items():
        writer.add_raw_tensor(name, raw.type, raw.shape, raw.data)
    writer.write()
    file = open_gguf(writer.path)
    tracer = CaseTracer("case", file.tensors)
    tracer.output(build(tracer))
    return CpuBackend().compile(tracer.plan(), file.tensors, Options(**options))


def test_weight_type_without_kernel_is_rejected_by_name(tmp_path):
    raw = random_weight(np.random.default_rng(0), GGMLType.Q1_0, 4, 256)
    with pytest.raises(UnsupportedError, match=r"tensor 'x\.weight' is Q1_0, which is not supported yet"):
        case_of(tmp_path, {"x.weight": raw}, lambda p: p.embed("x"))


def test_mismatched_native_modules_are_rejected():
    program = _native.Program("scalar", 1, 4, 1024, 128)
    data = np.zeros(1000, np.uint8)
    with pytest.raises(ValueError, match="longer than its bytes"):
        program.add_matrix(int(GGMLType.F32), 16, 16, data)
    with pytest.raises(ValueError, match="does not fit its type's blocks of 32"):
        program.add_matrix(int(GGMLType.Q4_0), 1, 33, data)
    with pytest.raises(ValueError, match="does not fit"):
        program.add_matrix(int(GGMLType.F32), 0, 16, data)
    with pytest.raises(ValueError, match="weight type 99 has no kernel"):
        program.add_matrix(99, 1, 32, data)
    with pytest.raises(ValueError, match="outside the arena"):
        program.add_value(512, 64, False)
    with pytest.raises(ValueError, match="op 'nothing' has no native form"):
        program.add_step("nothing", [], [], [], {})
    x = program.add_value(0, 4, False)
    for inputs, weights, attributes, message in (
        ([x], [], {}, "op 'scale' needs attribute 'factor'"),
        ([x], [], {"factor": "two"}, "op 'scale' needs a number as attribute 'factor'"),
        ([x], [], {"factor": [2.0]}, "attribute 'factor' is neither a number nor text"),
        ([], [], {"factor": 2.0}, "op 'scale' needs input 0"),
        ([x], [], {"factor": 2.0, "window": 3}, "op 'scale' has no attribute 'window'"),
        ([x], [("bias", [0])], {"factor": 2.0}, "op 'scale' has no weight 'bias'"),
    ):
        with pytest.raises(ValueError, match=message):
            program.add_step("scale", inputs, [x], weights, attributes)
    with pytest.raises(ValueError, match="KV type 'q3' is unknown"):
        _native.Cache("q3", 1, [(1, 32, 32)])
    with pytest.raises(ValueError, match="too short"):
        _native.pack(int(GGMLType.F32), 16, 16, data, data.copy())
    for type, columns in ((99, 32), (int(GGMLType.Q4_0), 33)):
        with pytest.raises(ValueError, match="does not fit its type's blocks"):
            _native.pack(type, 1, columns, data, data.copy())
        with pytest.raises(ValueError, match="do not fit the row"):
            _native.dequantize_row(type, data, columns, np.zeros(64, np.float32))


def test_native_code_rejects_integers_beyond_32_bits_and_zero_lengths():
    program = _native.Program("scalar", 1, 4, 1024, 128)
    x, y = (program.add_value(512 * i, 4, False) for i in range(2))
    attributes = {"entry": 0, "head_dim": 4, "mask": "", "window": 0, "scale": 1.0, "softcap": 0.0, "temper": 0.1}
    attributes |= {"temper_offset": 0, "alibi": 0.0}
    for changes, message in (
        (
            {"temper_length": 2**32},
            "op 'attend' got 4294967296 as attribute 'temper_length', which 32 bits do not hold",
        ),
        ({"temper_length": 1, "window": -(2**31) - 1}, "attribute 'window', which 32 bits"),
        ({"temper_length": 0}, "op 'attend' needs a temper_length of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            program.add_step("attend", [x], [y], [], attributes | changes)


def test_native_code_rejects_rope_wider_than_a_head():
    program = _native.Program("scalar", 1, 4, 1024, 128)
    x, y = (program.add_value(512 * i, 4, False) for i in range(2))
    attributes = {"head_dim": 4, "rope_column": 0, "adjacent": 0, "eps": 0.0, "entry": 0}
    for n_rot in (6, -2):
        for op, inputs, extra in (("rope", [x], ()), ("store", [x, x, x], ("eps", "entry"))):
            own = {name: n for name, n in attributes.items() if name not in {"eps", "entry"} - set(extra)}
            with pytest.raises(ValueError, match=f"op '{op}' cannot rotate {n_rot} elements of a head"):
                program.add_step(op, inputs, [y], [], own | {"n_rot": n_rot})


def test_native_code_rejects_more_used_experts_than_given():
    program = _native.Program("scalar", 1, 4, 1024, 128)
    x, y = (program.add_value(512 * i, 4, False) for i in range(2))
    data = np.zeros(64, np.uint8)
    expert = program.add_matrix(int(GGMLType.F32), 4, 4, data)
    attributes = {"scoring": "softmax", "normalize": 0, "weights_scale": 1.0, "eps": 0.0, "scale": 1.0, "act": "silu"}
    attributes |= {"groups": 0, "groups_used": 0, "group_top": 2, "weigh": "output", "limit": 0.0}
    attributes |= {"cap": 0.0, "shared": 0}
    for n_experts, n_used in ((2, 3), (2, 0), (3, 1)):
        router = program.add_matrix(int(GGMLType.F32), n_experts, 4, data)
        weights = [("router", [router]), *((role, [expert] * 2) for role in ("gate", "up", "down"))]
        with pytest.raises(ValueError, match=r"op 'moe' of \d experts cannot use"):
            program.add_step("moe", [x], [y], weights, {**attributes, "n_used": n_used, "epilogue": "none"})


def test_native_code_rejects_unsupported_glu_limits():
    program = _native.Program("scalar", 1, 4, 1024, 128)
    x, y = (program.add_value(512 * i, 4, False) for i in range(2))
    for act, limit in (("gelu", 7.0), ("silu", -1.0)):
        with pytest.raises(ValueError, match=f"op 'glu' got a limit of .* that activation '{act}' does not support"):
            program.add_step("glu", [x, x], [y], [], {"act": act, "limit": limit})


def test_more_rows_than_memory_gives_a_one_line_error(tmp_path):
    match = r"max_rows is 1000000000000; .* GB, more than is available"
    with open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as file, pytest.raises(RequestError, match=match):
        CpuBackend().compile(trace(file), file.tensors, Options(max_rows=10**12))


@pytest.mark.parametrize("n_tokens", [2**40, 10**30])
def test_more_cache_than_memory_is_rejected_with_its_size(n_tokens, tmp_path):
    with pytest.raises(RequestError, match=r"a cache of \d+ tokens takes [\d,.]+ GB, more than is available") as error:
        LLM(write_tiny(TINY["llama"], tmp_path / "tiny.gguf"), threads=1, kv_tokens=n_tokens, check_memory=False)
    assert error.value.field == "kv_tokens"


def test_unbounded_window_is_the_complete_context(tmp_path):
    program = compiled(replace(TINY["llama"], extra={"attention.sliding_window": 2**63 - 1}), tmp_path)
    with open_gguf(write_tiny(TINY["llama"], tmp_path / "none.gguf")) as file:
        whole = CpuBackend().compile(trace(file), file.tensors, Options(threads=2, max_rows=8))
        assert np.array_equal(program.run(TWO, program.new_state(3)), whole.run(TWO, whole.new_state(3)))


def test_library_older_than_its_sources_is_reported_if_native_code_rejects_a_step(tmp_path, program, monkeypatch):
    library, source = tmp_path / "library.so", tmp_path / "native" / "cpu" / "op.cpp"
    source.parent.mkdir(parents=True)
    for file, time in ((library, 200), (source, 100)):
        file.touch()
        os.utime(file, (time, time))
    assert advice_if_old(tmp_path / "native", library) == advice_if_old(tmp_path / "none", library) == ""
    assert advice_if_old(tmp_path / "native", tmp_path / "none") == ""
    os.utime(source, (300, 300))
    monkeypatch.setattr(
        "woolly.runtime.cpu.native_steps.advice_if_old", lambda: advice_if_old(tmp_path / "native", library)
    )
    monkeypatch.setattr(program._steps, "_native", MagicMock(add_step=MagicMock(side_effect=ValueError("no weight"))))
    with pytest.raises(UnsupportedError, match=r"no weight; the native library is older than these sources: .*run"):
        program._steps._add(program.running_plan.steps[0], False)
