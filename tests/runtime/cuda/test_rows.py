"""Ops of rows and elements on the emulated GPU: some of each family; cases.py runs all."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from tests.cases.ops import EPS, N_TOKENS, CaseTracer, expected, run
from tests.cases.scans import ALL
from tests.cases.weights import TYPES, Raw, random_vector, random_weight
from tests.runtime.cuda.cases import check
from tests.runtime.cuda.emulated import EmulatedDevice
from tests.runtime.cuda.harness import CaseProgram
from woolly.gguf import GGUFWriter, open_gguf
from woolly.plan import Step, Value
from woolly.plan.ops.basic import Act, Gate
from woolly.plan.passes import fuse
from woolly.quant import GGMLType
from woolly.runtime import Batch, Options, get_backend

# One of each op, at a width that is not a multiple of 4 if there is one.
NAMES = (
    *("rms_norm-33x2", "rms_norm-576x1", "rms_norm-bare-16x2", "layer_norm-bias-2x3", "layer_norm-own-16x2"),
    *("layer_norm-bare-100", "add-17", "add-100", "glu-large", "glu-limit-0.1-17", "glu-100", "scale-17"),
    *(
        "output_rows-17",
        "clamp-17",
        "softcap-17",
        "xielu-100",
        "slice-5-20",
        "slice-runs",
        "concat-5-own",
        "concat-3-shared",
    ),
    *("mul-5x3", "mul-33x1", "mul_weight-5x3", "mul_weight-runs-5x3", "add_weight-5x3", "lerp-5x3", "vecdot-33x1"),
    *(
        "mix_streams-4-4",
        "match_rms-3",
        "gaussian_topk-100",
        "rope-adjacent-16",
        "rope-neox-6",
        "pool-mean",
        "pool-first",
        "pool-last",
    ),
    *("embed_position-Q8_0", "embed_token_type-2-7", "embed_token_type-1-0"),
    *(f"unary-{kind}-17" for kind in get_args(Act)[:-1]),
    *(f"glu-{act}-17" for act in get_args(Gate)[1:-1]),
)


@pytest.mark.parametrize("name", NAMES)
def test_case_is_within_its_bound_of_the_reference(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_embedding_tables_of_every_type_match_numpy(type, tmp_path):
    name = [name for name in ALL if name.startswith(f"embed-{type.name}-")][-1]
    check(name, tmp_path)


@pytest.mark.parametrize("name", ["rms_norm-576x1", "layer_norm-bias-33x1", "vecdot-64x4", "match_rms-3"])
def test_row_has_the_same_bits_in_every_batch(name, tmp_path):
    case = ALL[name]
    with case.open(tmp_path) as file:
        device = EmulatedDevice()
        program = CaseProgram(device, fuse(case.plan(file)), file.tensors)
        tokens = np.arange(40) % N_TOKENS
        together = program.run(Batch.of([(tokens, 0, [0, 1])]), state := program.new_state(2))
        for row in (0, 7, 39):
            alone = program.run(Batch.of([(tokens[row : row + 1], 0, [0])]), state)
            np.testing.assert_array_equal(alone[0].view(np.uint32), together[row].view(np.uint32))
        device.close()


def opened(folder, tensors):
    writer = GGUFWriter(folder / "case.gguf")
    for name, raw in tensors.items():
        writer.add_raw_tensor(name, raw.type, raw.shape, raw.data)
    writer.write()
    return open_gguf(writer.path)


@pytest.mark.parametrize("rows", ["batch", "output"])
def test_adapter_adds_the_scale_of_each_sequence(rows, tmp_path):
    rng = np.random.default_rng(1)
    tensors = {f"{name}.weight": random_weight(rng, GGMLType.F32, N_TOKENS, 33) for name in ("x", "added")}
    with opened(tmp_path, tensors) as file:
        tracer = CaseTracer("case", file.tensors)
        x, added = tracer.embed("x"), tracer.embed("added")
        if rows == "output":
            x, added = tracer.output_rows(x), tracer.output_rows(added)
        tracer.output(added)
        plan = tracer.plan()
        value = Value(len(plan.values), 33, rows)
        inputs = (x.value.id, added.value.id)
        step = Step("add_lora", inputs, (value.id,), (), (("adapter", 1), ("factor", 0.7)), "case.py:1")
        plan = replace(plan, steps=(*plan.steps, step), values=(*plan.values, value))
        device = EmulatedDevice()
        program, reference = CaseProgram(device, plan, file.tensors), get_backend("reference")
        oracle = reference.compile(plan, file.tensors, Options())
        batch = Batch.of([([1, 2, 3], 0, [0]), ([4, 5], 0, [1])], [0, 2, 4])
        for adapters in (None, np.array([[9, 0.3], [9, 0]], np.float32)):
            given = replace(batch, adapters=adapters)
            want = oracle.run(given, oracle.new_state(2))
            np.testing.assert_array_equal(program.run(given, program.new_state(2)), want)
        device.close()


def test_hidden_states_are_normed_unless_a_draft_made_them(tmp_path):
    tensors = {"norm.weight": random_vector(np.random.default_rng(2), 100, 1.0)}
    with opened(tmp_path, tensors) as file:
        tracer = CaseTracer("case", file.tensors)
        tracer.output(tracer.hidden("norm", eps=EPS))
        plan, device = tracer.plan(), EmulatedDevice()
        program = CaseProgram(device, plan, file.tensors)
        oracle = get_backend("reference").compile(plan, file.tensors, Options())
        hidden = np.random.default_rng(3).standard_normal((5, 100)).astype(np.float32)
        for is_normed in (False, True):
            batch = replace(Batch.of([(range(5), 0, [0])]), hidden=hidden, is_hidden_normed=is_normed)
            want = oracle.run(batch, oracle.new_state(1))
            np.testing.assert_allclose(program.run(batch, program.new_state(1)), want, rtol=1e-6)
        device.close()


def test_nan_stays_nan(tmp_path):
    """And breaks no other row."""
    case = ALL["unary-relu-17"]
    tensors = dict(case.tensors())
    values = tensors["x.weight"].values().copy()
    values[3, 5] = np.nan
    tensors["x.weight"] = Raw(GGMLType.F32, values.shape, values.view(np.uint8).reshape(-1))
    case = replace(case, make=lambda rng: tensors)
    with case.open(tmp_path) as file:
        want, _ = expected(case, file)
        device = EmulatedDevice()
        got = run(case, CaseProgram(device, fuse(case.plan(file)), file.tensors))
        device.close()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
