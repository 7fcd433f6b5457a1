"""What cannot be computed is refused with a sentence, and the program goes on working."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.ops import CaseTracer
from tests.cases.tiny import N_VOCAB, TINY, write_tiny
from tests.cases.weights import random_weight
from woolly import _native
from woolly.errors import PlanError, RequestError, UnsupportedError
from woolly.gguf import GGMLType, GGUFWriter, open_gguf
from woolly.models import trace
from woolly.plan import Rope
from woolly.runtime import Batch, Options
from woolly.runtime.cpu import CpuBackend, kernel_level

TOKENS = [5, 9, 2, 40, 8, 1]
BATCH = Batch.of([(TOKENS[:4], 0, [2]), (TOKENS[4:], 0, [1])])


def compiled(tiny, folder, **options):
    file = open_gguf(write_tiny(tiny, folder / "tiny.gguf"))
    return CpuBackend().compile(trace(file), file.tensors, Options(**{"threads": 2, "max_rows": 8} | options))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(TINY["llama"], tmp_path_factory.mktemp("llama"))


def ints(*values):
    return np.array(values, np.int32)


def with_value(array, index, value):
    array = array.copy()
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": with_value(BATCH.tokens, 3, -1)}, "token -1 is outside the vocabulary of 320"),
        ({"tokens": with_value(BATCH.tokens, 0, N_VOCAB)}, "token 320 is outside the vocabulary of 320"),
        ({"offsets": ints(1, 4, 6)}, "offsets do not cover the rows"),
        ({"offsets": ints(0, 4, 5)}, "offsets do not cover the rows"),
        ({"offsets": ints(0, 4, 7)}, "offsets do not cover the rows"),
        ({"offsets": ints(0, 2**31 - 1, 6)}, "offsets do not cover the rows"),
        ({"offsets": ints(0, -5, 6)}, "a sequence without rows"),
        ({"offsets": ints(0, 0, 6)}, "a sequence without rows"),
        ({"offsets": ints(0, 6, 6)}, "not consecutive"),
        ({"positions": ints(0, 1, 3, 4, 0, 1)}, "not consecutive"),
        ({"positions": ints(0, 1, 2, 3, 2**31 - 1, -(2**31))}, "not consecutive"),
        ({"positions": ints(0, 1, 2, 3, -1, 0)}, "position 0 is outside the context"),
        ({"positions": ints(0, 1, 2, 3, 2**20 - 1, 2**20)}, "position 1048576 is outside the context of 1048576"),
        ({"positions": ints(0, 1, 2, 3, 31, 32)}, "too few pages"),
        ({"pages": ints([2], [4])}, "page 4 is outside the cache"),
        ({"pages": ints([-1], [1])}, "page -1 is outside the cache"),
        ({"output_rows": ints(3, 6)}, "a row outside the batch"),
        ({"output_rows": ints(-1)}, "a row outside the batch"),
        ({"output_rows": ints(*[0] * 9)}, "more logits wanted than rows fit"),
        ({"positions": ints(0, 1, 2)}, "do not fit together"),
        ({"pages": ints([2])}, "do not fit together"),
        ({"offsets": ints(0)}, "do not fit together"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_the_next_one_works(program, changes, message):
    state = program.new_state(4)
    before = program.run(BATCH, state).copy()
    with pytest.raises(ValueError, match=message):
        program.run(replace(BATCH, **changes), state)
    np.testing.assert_array_equal(program.run(BATCH, state), before)


def test_a_batch_of_too_many_rows_or_none_is_refused(program):
    state = program.new_state(4)
    with pytest.raises(ValueError, match="a batch of 9 rows, where 1 to 8 fit"):
        program.run(Batch.of([([1] * 9, 0, [0])]), state)
    with pytest.raises(ValueError, match="zero-size"):
        program.run(replace(BATCH, tokens=ints(), positions=ints()), state)
    assert program.run(Batch.of([([1] * 8, 0, [0])]), state).shape == (1, N_VOCAB)


def test_a_cache_of_another_plan_is_refused(program, tmp_path):
    others = [replace(TINY["llama"], n_layers=1), replace(TINY["llama"], n_kv_heads=1), TINY["qwen3"]]
    for tiny in others:
        state = compiled(tiny, tmp_path).new_state(4)
        with pytest.raises(ValueError, match="the cache was made for another plan"):
            program.run(BATCH, state)
    program.run(BATCH, program.new_state(4))


def test_steps_outside_the_plan_are_refused(program):
    n = len(program.fused.steps)
    for first, last in ((-1, 2), (2, 2), (3, 2), (0, n + 1), (n, n + 1)):
        with pytest.raises(PlanError, match="not a part of a plan"):
            program.run(BATCH, program.new_state(4), first, last)
        with pytest.raises(ValueError, match="steps outside the plan"):
            native_run(program._native, program.new_state(4).native, first, last)


def native_run(native, cache, first, last):
    table = np.zeros((256, 8), np.float32)
    b = BATCH
    native.run(cache, b.tokens, b.positions, b.offsets, b.pages, b.output_rows, table, table, first, last)


def test_a_kernel_level_that_the_machine_lacks_is_refused(tmp_path, monkeypatch):
    with pytest.raises(RequestError, match=r"kernel level 'avx9' cannot run on this machine; it can run: .*scalar"):
        compiled(TINY["llama"], tmp_path, level="avx9")
    monkeypatch.setenv("WOOLLY_ISA", "mmx")
    with pytest.raises(RequestError, match="kernel level 'mmx' cannot run"):
        compiled(TINY["llama"], tmp_path)
    with pytest.raises(ValueError, match="kernel level 'mmx' cannot run here"):
        _native.Program("mmx", 1, 8, 64, 128)


def test_the_level_is_the_best_unless_named(tmp_path, monkeypatch):
    monkeypatch.delenv("WOOLLY_ISA", raising=False)
    assert _native.kernel_levels()[-1] == "scalar"
    assert kernel_level() == _native.kernel_levels()[0]
    monkeypatch.setenv("WOOLLY_ISA", "scalar")
    assert compiled(TINY["llama"], tmp_path).level == "scalar"
    assert kernel_level(_native.kernel_levels()[0]) == _native.kernel_levels()[0]  # what is asked for here wins


def test_heads_that_a_cache_cannot_hold_are_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"heads of 16 do not fit the q8_0 cache.*multiples of 32 up to 512"):
        compiled(TINY["llama"], tmp_path, kv_type="q8_0")
    with pytest.raises(UnsupportedError, match=r"heads of 24 do not fit the f16 cache.*multiples of 16"):
        compiled(replace(TINY["llama"], head_dim=24), tmp_path)


def case_of(folder, tensors, build, **options):
    writer = GGUFWriter(folder / "case.gguf")
    for name, raw in tensors.items():
        writer.add_raw_tensor(name, raw.type, raw.shape, raw.data)
    writer.write()
    file = open_gguf(writer.path)
    tracer = CaseTracer("case", file.tensors)
    tracer.output(build(tracer))
    return CpuBackend().compile(tracer.plan(), file.tensors, Options(**options))


def test_a_weight_type_without_kernel_is_refused_by_name(tmp_path):
    raw = random_weight(np.random.default_rng(0), GGMLType.IQ2_XXS, 4, 256)
    with pytest.raises(UnsupportedError, match=r"tensor 'x\.weight' is IQ2_XXS, which is not supported yet"):
        case_of(tmp_path, {"x.weight": raw}, lambda p: p.embed("x"))


def test_a_second_rotary_embedding_is_refused(tmp_path):
    def build(p):
        x = p.embed("x")
        for layer, base in enumerate((100.0, 200.0)):
            rope = Rope(32, 32, base, "halves")
            x = p.attention(p.rope(x, rope), p.rope(x, rope), x, layer=layer, head_dim=32, scale=1.0)
        return x

    raw = random_weight(np.random.default_rng(0), GGMLType.F32, 4, 32)
    with pytest.raises(UnsupportedError, match="several rotary embeddings"):
        case_of(tmp_path, {"x.weight": raw}, build)


def test_native_parts_that_do_not_fit_are_refused():
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
    with pytest.raises(ValueError, match="op 'conv' has no native form"):
        program.add_step("conv", [], [])
    with pytest.raises(ValueError, match="KV type 'q4' is unknown"):
        _native.Cache("q4", 1, [(1, 32)])
    with pytest.raises(ValueError, match="too short"):
        _native.pack(int(GGMLType.F32), 16, 16, data, data.copy())
    for type, columns in ((99, 32), (int(GGMLType.Q4_0), 33)):
        with pytest.raises(ValueError, match="does not fit its type's blocks"):
            _native.pack(type, 1, columns, data, data.copy())
        with pytest.raises(ValueError, match="do not fit the row"):
            _native.dequantize_row(type, data, columns, np.zeros(64, np.float32))


def test_more_rows_than_memory_has_room_for_are_refused_in_one_sentence(tmp_path):
    match = r"max_rows is 1000000000000; .* GB, more than the system gives"
    with open_gguf(write_tiny(TINY["llama"], tmp_path / "tiny.gguf")) as file, pytest.raises(RequestError, match=match):
        CpuBackend().compile(trace(file), file.tensors, Options(max_rows=10**12))
