"""Metadata that does not make a model is refused in one sentence that names the key."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.diffusion import DIFFUSION
from tests.cases.encoder_decoders import READERS
from tests.cases.encoders import ENCODERS
from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, tensors, write_tiny
from woolly import LLM
from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.models import architectures, trace
from woolly.plan.rope_scaling import rope_frequencies
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend


def rewrite(folder, name="llama", drop=(), **changes):
    """A tiny model with some metadata changed or dropped."""
    path = write_tiny(TINY[name], folder / "good.gguf")
    with open_gguf(path) as file:
        metadata = {key: value for key, value in file.metadata.items() if key not in drop}
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    writer = GGUFWriter(folder / "bad.gguf")
    for key, value in metadata.items():
        writer.add(key, value.tolist() if hasattr(value, "tolist") else value)
    for tensor, array in tensors(TINY[name]).items():
        writer.add_tensor(tensor, array)
    writer.write()
    return open_gguf(folder / "bad.gguf")


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "embedding_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "context_length",
    ],
)
def test_missing_key_is_named(key, tmp_path):
    with (
        rewrite(tmp_path, drop=(f"llama.{key}",)) as file,
        pytest.raises(ModelError, match=f"llama.{key} is missing"),
    ):
        trace(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": "two"}, "llama.block_count is 'two'; expected an integer"),
        ({"llama__block_count": 0}, "a positive integer"),
        ({"llama__block_count": 2**31}, "has 2147483648 blocks; the maximum is 16384"),
        ({"llama__block_count": [1, 2]}, "llama.block_count is an array"),
        ({"llama__attention__head_count_kv": 3}, "4 attention heads are not divisible by 3"),
        ({"llama__rope__freq_base": 0.5}, "a base above 1"),
        ({"llama__rope__freq_base": float("nan")}, "a finite number"),
        ({"llama__attention__sliding_window": -1}, "both must be 0 or more"),
        ({"llama__attention__layer_norm_rms_epsilon": -1.0}, "both must be 0 or more"),
        ({"llama__rope__scaling__type": "yarn", "llama__rope__scaling__yarn_beta_fast": 0.0}, "must be positive"),
    ],
)
def test_wrong_value_is_named(changes, message, tmp_path):
    with rewrite(tmp_path, **changes) as file, pytest.raises(ModelError, match=message):
        trace(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__logit_scale": 8.0}, "llama.logit_scale is set"),
        ({"llama__swiglu_clamp_exp": [0.0, 7.0]}, "llama.swiglu_clamp_exp is set"),
        ({"llama__expert_count": 8, "llama__expert_used_count": 2, "llama__expert_gating_func": 4}, "gating_func is 4"),
        ({"llama__rope__scaling__type": "longrope"}, "longrope"),
        ({"llama__attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set"),
        ({"llama__attention__sliding_window_pattern": [True, False]}, "sliding_window_pattern is set"),
        ({"llama__residual_scale": 0.22}, "residual_scale is set"),
        ({"general__type": "adapter"}, "file type is 'adapter'"),
        (
            {"general__architecture": "wavtokenizer-dec"},
            "architecture 'wavtokenizer-dec' is not supported yet; see `woolly list --architectures`",
        ),
    ],
)
def test_unsupported_feature_is_reported(changes, message, tmp_path):
    with rewrite(tmp_path, **changes) as file, pytest.raises(UnsupportedError, match=message):
        trace(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__embedding_length": 128}, "64 columns, but the metadata says 128"),
        ({"llama__attention__head_count": 8}, "64 rows, but the metadata says 128"),
        ({"llama__attention__head_count_kv": 4}, "32 rows, but the metadata says 64"),
        ({"llama__feed_forward_length": 128}, "96 rows, but the metadata says 128"),
    ],
)
def test_metadata_that_contradicts_the_weights_is_rejected(changes, message, tmp_path):
    with rewrite(tmp_path, **changes) as file, pytest.raises(PlanError, match=message):
        trace(file)


def test_granite_without_a_logit_scale_is_rejected(tmp_path):
    with (
        rewrite(tmp_path, "granite", drop=("granite.logit_scale",)) as file,
        pytest.raises(ModelError, match=r"granite\.logit_scale is missing"),
    ):
        trace(file)


def test_every_architecture_has_a_tiny_model():
    tiny = (FAMILIES | ENCODERS | READERS | DIFFUSION).values()
    own = {"parakeet", "whisper"}  # tests/cases/ writes them as whisper.cpp does
    own |= {"glm5-next"}  # another name of glm5next
    assert set(architectures()) - own == {one.architecture for one in tiny} >= {"bert", "granite", "llama"}


@pytest.mark.parametrize("window", [2**31, 2**63 - 1])
def test_window_beyond_every_context_is_no_window(window, tmp_path):
    with rewrite(tmp_path, llama__attention__sliding_window=window) as file:
        CpuBackend().compile(trace(file), file.tensors, Options(threads=1))


@pytest.mark.parametrize(("ctx", "kind"), [(None, "long"), (17, "long"), (16, "short")])
def test_context_in_use_selects_the_phi_rope_factors(ctx, kind, tmp_path):
    with open_gguf(write_tiny(FAMILIES["phi-long"], tmp_path / "phi.gguf")) as file:
        assert f"rope_factors_{kind}.weight" in trace(file, ctx=ctx).weights


def test_unused_rope_factors_are_rejected(tmp_path):
    row = replace(FAMILIES["gemma3n"], root=FAMILIES["gemma3n"].root | {"rope_freqs.weight": [1.0] * 4})
    with (
        open_gguf(write_tiny(row, tmp_path / "odd.gguf")) as file,
        pytest.raises(ModelError, match=r"does not use \(rope_freqs\.weight\)"),
    ):
        trace(file)


@pytest.mark.parametrize(("factor", "magnitude"), [(None, 1 + 0.1 * math.log(8)), (1.5, 1.5)])
def test_factor_of_the_file_replaces_the_yarn_default(factor, magnitude, tmp_path):
    changes = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 8.0}
    changes |= {} if factor is None else {"llama__rope__scaling__yarn_attn_factor": factor}
    with rewrite(tmp_path, **changes) as file:
        rope = next(step.rope() for step in trace(file).steps if step.op == "rope")
    assert rope_frequencies(rope)[1] == pytest.approx(magnitude)


@pytest.mark.parametrize("name", ["glm4moe", "ernie4_5-moe", "hunyuan-dense"])
def test_mrope_sections_are_equal_for_text(name, tmp_path):
    tiny, rows = FAMILIES[name], []
    for extra in ({}, {"rope.dimension_sections": [2, 1, 1, 0]}):
        path = write_tiny(replace(tiny, extra=tiny.extra | extra), tmp_path / "tiny.gguf")
        with LLM(path, backend="reference") as llm:
            rows.append(llm.logits([5, 9, 2, 7]))
    np.testing.assert_array_equal(*rows)
