"""Type of each tensor by the rules of the well-known mixes, for one shape."""

import pytest

from woolly.errors import RequestError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.quant import GGMLType
from woolly.quantize import MIXES, find_mix, find_tensor_type, find_type, is_kept, make_recipe

N_LAYERS = 30
# Layers whose ffn_down and attn_v have more bits in the M mixes.
SENSITIVE = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29}


def write(path, *, width=256, tied=True, kv_heads=4, experts=0, type=GGMLType.F16):
    """Shapes and names alone matter, so the tensors are as small as they can be."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "llama")
    writer.add("llama.block_count", N_LAYERS)
    writer.add("llama.attention.head_count", 8)
    writer.add("llama.attention.head_count_kv", kv_heads)
    writer.add("llama.expert_count", experts)

    def add(name, *shape, its=type):
        n_bytes = its.row_bytes(shape[-1]) * (shape[0] if len(shape) > 1 else 1)
        writer.add_raw_tensor(name, its, shape, bytes(n_bytes))

    add("token_embd.weight", 2, width)
    add("output_norm.weight", width, its=GGMLType.F32)
    if not tied:
        add("output.weight", 2, width)
    for i in range(N_LAYERS):
        add(f"blk.{i}.attn_norm.weight", width, its=GGMLType.F32)
        add(f"blk.{i}.attn_q.bias", width, its=GGMLType.F32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            add(f"blk.{i}.{name}.weight", 2, width)
    writer.write()
    return open_gguf(path)


def types_of(recipe):
    return {change.tensor.name: change.type.name for change in recipe.changes}


def layers_with(types, part, name):
    return {i for i in range(N_LAYERS) if types[f"blk.{i}.{part}.weight"] == name}


@pytest.fixture
def plain(tmp_path):
    return write(tmp_path / "plain.gguf")


def test_vectors_keep_their_type(plain):
    types = types_of(make_recipe(plain, find_mix("Q4_K_M")))
    assert types["output_norm.weight"] == types["blk.0.attn_norm.weight"] == types["blk.3.attn_q.bias"] == "F32"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("blk.0.hc_attn_fn.weight", True),
        ("blk.42.hc_ffn_fn.weight", True),
        ("output_hc_fn.weight", True),
        ("blk.2.attn_compressor_ape.weight", True),
        ("blk.2.indexer_compressor_ape.weight", True),
        ("blk.0.ffn_gate_tid2eid.weight", True),
        ("blk.2.attn_compressor_kv.weight", False),
        ("blk.2.attn_output_a.weight", False),
    ],
)
def test_routing_tensors_of_deepseek_4_are_unchanged(name, kept):
    assert is_kept(name) == kept


@pytest.mark.parametrize(("mix", "most"), [("Q4_K_M", "Q4_K"), ("Q5_K_M", "Q5_K")])
def test_medium_mixes_give_sensitive_layers_more(plain, mix, most):
    types = types_of(make_recipe(plain, find_mix(mix)))
    for part in ("ffn_down", "attn_v"):
        assert layers_with(types, part, "Q6_K") == SENSITIVE
        assert layers_with(types, part, most) == set(range(N_LAYERS)) - SENSITIVE
    for part in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up"):
        assert layers_with(types, part, most) == set(range(N_LAYERS))
    assert types["token_embd.weight"] == "Q6_K"  # it is the output too


def test_small_mixes_give_the_first_layers_more(plain):
    types = types_of(make_recipe(plain, find_mix("Q4_K_S")))
    assert layers_with(types, "ffn_down", "Q5_K") == {0, 1, 2}
    assert layers_with(types, "attn_v", "Q5_K") == {0, 1, 2, 3}
    types = types_of(make_recipe(plain, find_mix("Q3_K_M")))
    assert layers_with(types, "ffn_down", "Q5_K") == {0}
    assert layers_with(types, "ffn_down", "Q4_K") == set(range(1, N_LAYERS))
    assert layers_with(types, "attn_v", "Q5_K") == {0, 1}
    assert layers_with(types, "attn_output", "Q4_K") == set(range(N_LAYERS))
    types = types_of(make_recipe(plain, find_mix("Q2_K")))
    assert layers_with(types, "ffn_down", "Q3_K") == layers_with(types, "attn_v", "Q3_K") == set(range(N_LAYERS))


def test_separate_output_leaves_the_embedding_to_the_mix(tmp_path):
    types = types_of(make_recipe(write(tmp_path / "untied.gguf", tied=False), find_mix("Q4_K_M")))
    assert (types["token_embd.weight"], types["output.weight"]) == ("Q4_K", "Q6_K")


def test_values_shared_by_many_heads_and_experts_get_more(tmp_path):
    types = types_of(make_recipe(write(tmp_path / "shared.gguf", kv_heads=2), find_mix("IQ4_NL")))
    assert layers_with(types, "attn_v", "Q5_K") == set(range(N_LAYERS))
    types = types_of(make_recipe(write(tmp_path / "experts.gguf", experts=8), find_mix("Q4_K_M")))
    assert layers_with(types, "attn_v", "Q8_0") == layers_with(types, "attn_k", "Q8_0") == set(range(N_LAYERS))
    assert layers_with(types, "attn_output", "Q5_K") == set(range(N_LAYERS))


def test_rows_of_partial_blocks_get_a_fallback_type(tmp_path):
    file = write(tmp_path / "narrow.gguf", width=96)
    recipe = make_recipe(file, find_mix("Q4_K_M"))
    types = types_of(recipe)
    assert layers_with(types, "ffn_down", "Q8_0") == SENSITIVE  # for Q6_K
    assert layers_with(types, "attn_q", "Q5_0") == set(range(N_LAYERS))  # for Q4_K
    assert types["token_embd.weight"] == "Q8_0"
    assert recipe.n_misfits == 7 * N_LAYERS + 1
    types = types_of(make_recipe(write(tmp_path / "odd.gguf", width=40, type=GGMLType.F32), find_mix("Q8_0")))
    assert types["blk.0.attn_q.weight"] == "F16"


def test_pure_and_given_types_override_the_mix(plain):
    types = types_of(make_recipe(plain, find_mix("Q4_K_M"), pure=True))
    assert set(types.values()) == {"Q4_K", "F32"}
    types = types_of(make_recipe(plain, find_mix("Q4_K_M"), embedding_type=find_type("q8_0", "--x")))
    assert types["token_embd.weight"] == "Q8_0"


def test_given_type_that_does_not_fit_is_rejected(tmp_path):
    file = write(tmp_path / "narrow.gguf", width=96)
    with pytest.raises(RequestError, match=r"token_embd\.weight cannot be Q4_K: its row length 96 is not a"):
        make_recipe(file, find_mix("Q8_0"), embedding_type=GGMLType.Q4_K)


def test_requantizing_needs_a_flag(tmp_path):
    file = write(tmp_path / "small.gguf", type=GGMLType.Q8_0)
    with pytest.raises(RequestError, match=r"already quantized \(token_embd\.weight is Q8_0\).*--allow-requantize"):
        make_recipe(file, find_mix("Q4_K_M"))
    recipe = make_recipe(file, find_mix("Q4_K_M"), allow_requantize=True)
    assert types_of(recipe)["blk.7.attn_q.weight"] == "Q4_K"
    # A type that a tensor has already is not a second loss.
    assert not any(change.is_change for change in make_recipe(file, find_mix("Q8_0")).changes)


def test_names_ignore_case_and_errors_suggest_near_ones():
    assert find_mix("q4_k_m") is MIXES["Q4_K_M"]
    assert find_mix("Q4_K") is MIXES["Q4_K_M"]
    with pytest.raises(RequestError, match="did you mean Q4_K_M"):
        find_mix("Q4KM")
    with pytest.raises(RequestError, match="expected one of F32"):
        find_mix("tiny")
    with pytest.raises(RequestError, match=r"--output-tensor-type is 'Q4_K_M'; expected one of F32, F16"):
        find_type("Q4_K_M", "--output-tensor-type")


def test_expressions_override_all_else_and_the_last_one_wins(plain):
    given = [find_tensor_type(text) for text in ("attn_.*=q8_0", r"blk\.[0-3]\.attn_v=Q5_K", "token_embd=F16")]
    types = types_of(make_recipe(plain, find_mix("Q4_K_M"), embedding_type=GGMLType.Q6_K, tensor_types=given))
    assert types["blk.9.attn_q.weight"] == "Q8_0" and types["blk.9.attn_norm.weight"] == "F32"
    assert layers_with(types, "attn_v", "Q5_K") == {0, 1, 2, 3}
    assert types["token_embd.weight"] == "F16"


@pytest.mark.parametrize("text", ["attn_v", "=Q8_0", "(=Q8_0", "attn_v=Q9"])
def test_invalid_type_expression_is_rejected(text):
    with pytest.raises(RequestError, match="--tensor-type"):
        find_tensor_type(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "many", ["a", "b"], [float("nan"), 30.0]])
def test_invalid_count_is_treated_as_absent(value, tmp_path):
    writer = GGUFWriter(tmp_path / "odd.gguf")
    writer.add("general.architecture", "llama")
    writer.add("llama.block_count", value)
    writer.add_raw_tensor("blk.0.attn_v.weight", GGMLType.F16, (2, 256), bytes(1024))
    writer.write()
    with open_gguf(tmp_path / "odd.gguf") as file:
        assert len(make_recipe(file, find_mix("Q4_K_M")).changes) == 1
