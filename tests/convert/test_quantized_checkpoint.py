"""Quantized checkpoints keep their integers: what a GGUF file stands for is what the checkpoint stood for."""

import json

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.convert import folders
from tests.convert.folders import checkpoint_of, safetensors, write_folder
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import open_gguf
from woolly.quant import GGMLType

MATRIX = "model.layers.0.mlp.down_proj"  # (128, 256), whose rows stay where they are
NAME = "blk.0.ffn_down.weight"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


SHAPES = {
    "input_layernorm": (128,),
    "post_attention_layernorm": (128,),
    "self_attn.q_proj": (128, 128),
    "self_attn.k_proj": (64, 128),
    "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128),
    "self_attn.q_norm": (32,),
    "self_attn.k_norm": (32,),
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
}


@pytest.fixture(scope="module")
def plain():
    """A checkpoint of Qwen 3 whose matrices hold whole groups."""
    random = np.random.RandomState(0)
    shapes = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in SHAPES.items()}
    shapes |= {"model.embed_tokens.weight": (320, 128), "lm_head.weight": (320, 128), "model.norm.weight": (128,)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    return arrays, {"architectures": ["Qwen3ForCausalLM"]} | folders.listing()["qwen3"]["config"] | sizes


@pytest.fixture
def convert(plain, tmp_path, monkeypatch):
    """Give the tensors that stand for MATRIX, and get what it became."""
    quick = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", quick)

    def run(parts, config, kinds=None, matrix=MATRIX, type=None):
        arrays, usual = plain
        arrays = {name: value for name, value in arrays.items() if name != f"{matrix}.weight"}
        key = "quantization_config" if "quant_method" in config else "quantization"
        named = {f"{matrix}.{end}": value for end, value in parts.items()}
        folder = write_folder(
            tmp_path / "folder",
            arrays | named,
            usual | {key: config},
            kinds={f"{matrix}.{end}": kind for end, kind in (kinds or {}).items()},
        )
        plan = plan_conversion(open_checkpoint(folder))
        write_draft(plan, choose_types(plan, type), tmp_path / "out.gguf", threads=1)
        with open_gguf(tmp_path / "out.gguf") as made:
            return {name: (one.type, one.dequantize()) for name, one in made.tensors.items()}

    return run


def integers(seed, rows=128, columns=256):
    return np.random.RandomState(seed).randint(0, 16, (rows, columns)).astype(np.int64)


def scales_of(seed, rows, groups):
    return (np.random.RandomState(seed).rand(rows, groups) * 0.02 + 0.001).astype(np.float16)


def packed(values, order=range(8)):
    """Eight numbers of 4 bits in each word, along the last axis."""
    groups = values.reshape(*values.shape[:-1], -1, 8)[..., list(order)]
    words = (groups.astype(np.uint64) << (4 * np.arange(8, dtype=np.uint64))).sum(-1)
    return words.astype(np.uint32).view(np.int32)


def wanted(q, zeros, scales):
    group = q.shape[1] // scales.shape[1]
    wide = np.repeat(np.broadcast_to(zeros, scales.shape), group, axis=1)
    return ((q - wide) * np.repeat(scales.astype(np.float64), group, axis=1)).astype(np.float32)


@pytest.mark.parametrize(("zero", "type"), [(8, GGMLType.Q4_0), (None, GGMLType.Q5_0)])
def test_gptq_keeps_its_integers(zero, type, convert):
    q, scales = integers(1), scales_of(2, 128, 2)
    zeros = np.full((128, 2), 8) if zero else np.random.RandomState(3).randint(1, 17, (128, 2))
    parts = {
        "qweight": packed(q).T.copy(),
        "qzeros": packed((zeros - 1).T),
        "scales": scales.T.copy(),
        "g_idx": (np.arange(256) // 128).astype(np.int32),
    }
    found, values = convert(parts, {"quant_method": "gptq", "bits": 4, "group_size": 128})[NAME]
    assert found is type
    assert np.array_equal(values, wanted(q, zeros, scales))


def test_gptq_with_act_order_is_rejected(convert):
    q, scales = integers(1), scales_of(2, 128, 2)
    order = np.random.RandomState(0).permutation(np.arange(256) // 128).astype(np.int32)
    parts = {"qweight": packed(q).T.copy(), "qzeros": packed(np.full((2, 128), 7)), "scales": scales.T.copy()}
    with pytest.raises(UnsupportedError, match="desc_act"):
        convert(parts | {"g_idx": order}, {"quant_method": "gptq", "bits": 4, "group_size": 128})


def test_awq_keeps_its_integers(convert):
    q, scales, zeros = integers(4), scales_of(5, 128, 4), np.random.RandomState(6).randint(0, 16, (128, 4))
    parts = {
        "qweight": packed(q.T.copy(), AWQ_ORDER),
        "qzeros": packed(zeros.T.copy(), AWQ_ORDER),
        "scales": scales.T.copy(),
    }
    found, values = convert(parts, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"})[NAME]
    assert found is GGMLType.Q5_0
    assert np.array_equal(values, wanted(q, zeros, scales))


def test_mlx_keeps_its_integers(convert):
    q, scales = integers(7), scales_of(8, 128, 4)
    offsets = -scales * np.float16(7.5)
    parts = {"weight": packed(q).view(np.uint32), "scales": scales, "biases": offsets}
    found, values = convert(parts, {"bits": 4, "group_size": 64})[NAME]
    wide = np.repeat(scales.astype(np.float64), 64, axis=1) * q + np.repeat(offsets.astype(np.float64), 64, axis=1)
    assert found is GGMLType.Q4_1
    np.testing.assert_allclose(values, wide, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_keep_their_integers(symmetric, convert):
    q, scales = integers(9), scales_of(10, 128, 2)
    zeros = np.full((128, 2), 8) if symmetric else np.random.RandomState(11).randint(0, 16, (128, 2))
    parts = {"weight_packed": packed(q), "weight_scale": scales, "weight_shape": np.array([128, 256], np.int32)}
    if not symmetric:
        parts["weight_zero_point"] = packed(zeros.T.copy()).T.copy()
    found, values = convert(parts, {"quant_method": "compressed-tensors", "format": "pack-quantized"})[NAME]
    assert found is (GGMLType.Q4_0 if symmetric else GGMLType.Q5_0)
    assert np.array_equal(values, wanted(q, zeros, scales))


def test_compressed_tensors_of_eight_bits_keep_their_integers(convert):
    q, scales = np.random.RandomState(12).randint(-128, 128, (128, 256)).astype(np.int8), scales_of(13, 128, 1)
    parts = {"weight": q.view(np.uint8), "weight_scale": scales}
    config = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    found, values = convert(parts, config, {"weight": "I8"})[NAME]
    assert found is GGMLType.Q8_0
    assert np.array_equal(values, (q * scales.astype(np.float64)).astype(np.float32))


def test_scales_beyond_f16_are_rejected(convert):
    q, scales = integers(9), np.full((128, 2), 0.1, np.float32)
    parts = {"weight_packed": packed(q), "weight_scale": scales, "weight_shape": np.array([128, 256], np.int32)}
    with pytest.raises(UnsupportedError, match=r"weight_scale.* not exact in F16"):
        convert(parts, {"quant_method": "compressed-tensors", "format": "pack-quantized"})


def test_fp8_blocks_with_power_of_two_scales_are_exact(convert):
    codes = np.random.RandomState(14).randint(0, 127, (128, 256)).astype(np.uint8)
    factors = np.exp2(np.random.RandomState(15).randint(-9, 1, (2, 2))).astype(np.float32)
    parts = {"weight": codes, "weight_scale_inv": factors}
    config = {"quant_method": "fp8", "weight_block_size": [64, 128]}
    found, values = convert(parts, config, {"weight": "F8_E4M3"})[NAME]
    exponent, mantissa = codes >> 3, codes & 7
    plain = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent.astype(int) - 10))
    assert found is GGMLType.BF16
    assert np.array_equal(values, plain * np.kron(factors, np.ones((64, 128))))


def fp8_of(scales):
    """Numbers that are all 1, so that the values are the scales."""
    return {"weight": np.full((128, 256), 56, np.uint8), "weight_scale": scales}


BLOCKS = {"weights": {"strategy": "block", "block_structure": [48, 128]}}
ROWS = {"weights": {"strategy": "channel", "block_structure": None}}


def test_compressed_fp8_blocks_have_the_size_of_their_group(convert):
    scales = np.exp2(np.arange(6)).reshape(3, 2).astype(np.float32)  # 48, 48 and 32 rows
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": BLOCKS, "group_1": ROWS}}
    _, values = convert(fp8_of(scales), config, {"weight": "F8_E4M3"})[NAME]
    assert np.array_equal(values, np.kron(scales, np.ones((48, 128)))[:128])


def test_compressed_fp8_rows_keep_their_scales(convert):
    scales = np.exp2(np.arange(128) % 8).reshape(128, 1).astype(np.float32)
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": BLOCKS, "group_1": ROWS}}
    _, values = convert(fp8_of(scales), config, {"weight": "F8_E4M3"})[NAME]
    assert np.array_equal(values, np.repeat(scales, 256, axis=1))


def test_fp8_blocks_without_a_size_must_divide_the_matrix(convert):
    config = {"quant_method": "compressed-tensors"}
    scales = np.exp2(np.arange(4)).reshape(2, 2).astype(np.float32)
    _, values = convert(fp8_of(scales), config, {"weight": "F8_E4M3"})[NAME]
    assert np.array_equal(values, np.kron(scales, np.ones((64, 128))))
    with pytest.raises(UnsupportedError, match="does not give the block size"):
        convert(fp8_of(np.ones((3, 2), np.float32)), config, {"weight": "F8_E4M3"})


def test_scales_that_match_no_block_are_rejected(convert):
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": BLOCKS}}
    with pytest.raises(ModelError, match="which do not fit"):
        convert(fp8_of(np.ones((4, 2), np.float32)), config, {"weight": "F8_E4M3"})


def test_nvfp4_keeps_codes_and_scales(convert):
    random = np.random.RandomState(16)
    codes, scales = (
        random.randint(0, 256, (128, 128)).astype(np.uint8),
        random.randint(8, 120, (128, 16)).astype(np.uint8),
    )
    parts = {"weight": codes, "weight_scale": scales, "weight_scale_2": np.array([0.125], np.float32)}
    made = convert(parts, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"weight_scale": "F8_E4M3"})
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = table[np.stack([codes & 15, codes >> 4], -1).reshape(128, 256)]
    exponent, mantissa = (scales >> 3).astype(int), scales & 7
    factors = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    assert made[NAME][0] is GGMLType.NVFP4
    assert np.array_equal(made[NAME][1], values * np.repeat(factors, 16, axis=1))
    assert made["blk.0.ffn_down.scale"][1] == 0.125


def test_unknown_quantization_is_rejected_by_name(convert):
    with pytest.raises(UnsupportedError, match="'hqq' is not supported"):
        convert({"weight": np.zeros((128, 256), np.float32)}, {"quant_method": "hqq"})


def test_mxfp4_keeps_its_blocks(tmp_path, monkeypatch):
    quick = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", quick)
    with open_gguf(write_tiny(FAMILIES["gpt-oss"], tmp_path / "tiny.gguf")) as file:
        folder = checkpoint_of(file, tmp_path / "folder")
    stored = {name: one.array() for name, one in open_checkpoint(folder).tensors.items()}
    random, table = np.random.RandomState(17), np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    meant = {}
    for name in [name for name in stored if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = stored.pop(name).shape  # the other way round in full precision
        blocks = random.randint(0, 256, (experts, rows, columns // 32, 16)).astype(np.uint8)
        exponents = random.randint(118, 124, (experts, rows, columns // 32)).astype(np.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
        values = table[np.stack([blocks & 15, blocks >> 4], -1).reshape(experts, rows, -1, 32)]
        meant[name] = (values * 2.0 ** (exponents[..., None] - 127.0)).reshape(experts, rows, columns)
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config))
    plan = plan_conversion(open_checkpoint(folder))
    write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
    with open_gguf(tmp_path / "out.gguf") as made:
        for i in range(2):
            both = meant[f"model.layers.{i}.mlp.experts.gate_up_proj"]
            down = meant[f"model.layers.{i}.mlp.experts.down_proj"]
            for part, values in (("gate", both[:, ::2]), ("up", both[:, 1::2]), ("down", down)):
                tensor = made.tensors[f"blk.{i}.ffn_{part}_exps.weight"]
                assert tensor.type is GGMLType.MXFP4
                assert np.array_equal(tensor.dequantize(), values), tensor.name


def gptq_8_bits(q, zeros, scales):
    words = lambda x: np.ascontiguousarray(x.astype(np.uint8)).view(np.int32)  # noqa: E731
    return {
        "qweight": words(q).T.copy(),
        "qzeros": words((zeros - 1).T),
        "scales": scales.T.copy(),
    }


def test_gptq_of_8_bits_keeps_its_integers(convert):
    q, scales = np.random.RandomState(1).randint(0, 256, (128, 256)), scales_of(2, 128, 2)
    parts = gptq_8_bits(q, np.full((128, 2), 128), scales)
    found, values = convert(parts, {"quant_method": "gptq", "bits": 8, "group_size": 128})[NAME]
    assert found is GGMLType.Q8_0
    assert np.array_equal(values, wanted(q, 128, scales))


def test_gptq_of_8_bits_with_other_zero_points_is_rejected(convert):
    q, scales = np.random.RandomState(1).randint(0, 256, (128, 256)), scales_of(2, 128, 2)
    with pytest.raises(UnsupportedError, match="zero points other than 128"):
        convert(gptq_8_bits(q, np.full((128, 2), 127), scales), {"quant_method": "gptq", "bits": 8})


def test_f32_needs_no_second_rounding(convert):
    q, scales = integers(1), scales_of(2, 128, 2)
    parts = {"qweight": packed(q).T.copy(), "qzeros": packed(np.full((2, 128), 7)), "scales": scales.T.copy()}
    found, values = convert(parts, {"quant_method": "gptq", "bits": 4}, type="F32")[NAME]
    assert found is GGMLType.F32
    assert np.array_equal(values, wanted(q, 8, scales))


@pytest.mark.parametrize(("type", "off"), [("F32", 0), ("Q8_0", 5e-3)])
def test_other_types_of_fp8_are_made_from_the_exact_values(type, off, convert):
    scales = (np.random.RandomState(3).rand(128, 1) + 0.5).astype(np.float32)
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": ROWS}}
    _, values = convert(fp8_of(scales), config, {"weight": "F8_E4M3"}, type=type)[NAME]
    exact = np.repeat(scales, 256, axis=1)
    assert np.abs(values - exact).max() <= off
    if type == "Q8_0":  # rounded once: 127 steps of a scale in F16
        assert np.array_equal(values, np.float16(exact / np.float32(127)).astype(np.float32) * 127)


NF4 = np.concatenate([-np.geomspace(1, 0.09, 7), [0], np.geomspace(0.08, 1, 8)]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("nested", [False, True])
def test_nf4_is_converted_to_the_type_of_the_original(nested, dtype, convert):
    random = np.random.RandomState(5)
    q, scales = random.randint(0, 16, (128, 256)), random.rand(512).astype(np.float32)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": dtype, "shape": [128, 256]}
    pairs = q.reshape(-1, 2).astype(np.uint8)
    parts = {"weight": pairs[:, :1] << 4 | pairs[:, 1:], "weight.quant_map": NF4, "weight.absmax": scales}
    if nested:
        codes, outer = np.linspace(-1, 1, 256, dtype=np.float32), random.rand(2).astype(np.float32)
        indexes = random.randint(0, 256, 512).astype(np.uint8)
        state |= {"nested_blocksize": 256, "nested_offset": 0.25, "nested_dtype": "float32"}
        parts |= {"weight.absmax": indexes, "weight.nested_absmax": outer, "weight.nested_quant_map": codes}
        scales = codes[indexes] * np.repeat(outer, 256) + np.float32(0.25)
    data = np.frombuffer(json.dumps(state).encode(), np.uint8)
    parts["weight.quant_state.bitsandbytes__nf4"] = data
    exact = (NF4[q] * np.repeat(scales, 64).reshape(128, 256)).astype(np.float32)
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    found, values = convert(parts, config)[NAME]
    assert found is {"float32": GGMLType.F32, "float16": GGMLType.F16, "bfloat16": GGMLType.BF16}[dtype]
    np.testing.assert_allclose(values, exact, rtol=2**-8, atol=1e-7)
    assert np.array_equal(convert(parts, config, type="F32")[NAME][1], exact)


def test_int8_of_bitsandbytes_becomes_q8_0(convert):
    q = np.random.RandomState(12).randint(-127, 128, (128, 256)).astype(np.int8)
    row = np.random.RandomState(13).rand(128).astype(np.float32) + 1
    parts = {"weight": q.view(np.uint8), "SCB": row, "weight_format": np.zeros((), np.uint8)}
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    found, values = convert(parts, config, {"weight": "I8"})[NAME]
    exact = q * (row / np.float32(127))[:, None]
    assert found is GGMLType.Q8_0
    np.testing.assert_allclose(values, exact, rtol=2**-11)
    assert np.array_equal(convert(parts, config, {"weight": "I8"}, type="F32")[NAME][1], exact)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weight.absmax": np.zeros(511, np.float32)}, "does not match its quant_state"),
        ({"weight.quant_map": np.zeros(15, np.float32)}, "does not match its quant_state"),
        ({"weight.quant_state.bitsandbytes__nf4": np.zeros(4, np.uint8)}, "not valid JSON"),
        ({"weight.absmax": None}, "its absmax is missing"),
        ({"weight": None}, "weight is missing"),
    ],
)
def test_damaged_nf4_is_rejected(changes, says, convert):
    state = {"blocksize": 64, "dtype": "bfloat16", "shape": [128, 256]}
    parts = {
        "weight": np.zeros((16384, 1), np.uint8),
        "weight.absmax": np.zeros(512, np.float32),
        "weight.quant_map": NF4,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), np.uint8),
    }
    parts = {name: value for name, value in (parts | changes).items() if value is not None}
    with pytest.raises(ModelError, match=says):
        convert(parts, {"quant_method": "bitsandbytes"})
