"""Metadata that does not make a model is refused in one sentence that names the key."""

import pytest

from tests.cases.tiny import TINY, tensors, write_tiny
from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf import GGUFWriter, open_gguf
from woolly.models import architectures, trace


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
def test_a_missing_key_is_named(key, tmp_path):
    with (
        rewrite(tmp_path, drop=(f"llama.{key}",)) as file,
        pytest.raises(ModelError, match=f"llama.{key} is missing"),
    ):
        trace(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": "two"}, "llama.block_count is 'two', but a whole number was expected"),
        ({"llama__block_count": 0}, "a positive whole number"),
        ({"llama__block_count": [1, 2]}, "llama.block_count is an array"),
        ({"llama__attention__head_count_kv": 3}, "4 attention heads cannot share 3"),
        ({"llama__rope__freq_base": 0.5}, "a base above 1"),
        ({"llama__rope__freq_base": float("nan")}, "a finite number"),
        ({"llama__attention__sliding_window": -1}, "neither may be negative"),
        ({"llama__attention__layer_norm_rms_epsilon": -1.0}, "neither may be negative"),
        ({"llama__rope__scaling__type": "yarn", "llama__rope__scaling__yarn_beta_fast": 0.0}, "must be positive"),
    ],
)
def test_a_wrong_value_is_named(changes, message, tmp_path):
    with rewrite(tmp_path, **changes) as file, pytest.raises(ModelError, match=message):
        trace(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__expert_count": 8}, "llama.expert_count is set"),
        ({"llama__rope__scaling__type": "longrope"}, "longrope"),
        ({"llama__attention__causal": False}, "not causal"),
        ({"llama__attn_logit_softcapping": 50.0}, "attn_logit_softcapping is set"),
        ({"llama__attention__sliding_window_pattern": [True, False]}, "sliding_window_pattern is set"),
        ({"llama__residual_scale": 0.22}, "residual_scale is set"),
        ({"general__type": "adapter"}, "of type 'adapter'"),
        ({"llama__attention__value_length": 8}, "longer or shorter"),
        (
            {"general__architecture": "mamba"},
            "architecture 'mamba' is not supported yet; supported: granite, llama",
        ),
    ],
)
def test_what_is_not_supported_is_said(changes, message, tmp_path):
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
def test_metadata_that_does_not_fit_the_weights_is_refused(changes, message, tmp_path):
    with rewrite(tmp_path, **changes) as file, pytest.raises(PlanError, match=message):
        trace(file)


def test_granite_without_a_logit_scale_is_refused(tmp_path):
    with (
        rewrite(tmp_path, "granite", drop=("granite.logit_scale",)) as file,
        pytest.raises(ModelError, match=r"granite\.logit_scale is missing"),
    ):
        trace(file)


def test_the_known_architectures_are_these():
    assert architectures() == ("granite", "llama", "qwen2", "qwen3")
