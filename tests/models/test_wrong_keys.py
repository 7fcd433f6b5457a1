"""Every number of a file's metadata may be wrong: tracing gives a plan or one of Woolly's own errors."""

import math
from types import SimpleNamespace

import pytest

from tests.cases.encoders import ENCODERS
from tests.cases.families import FAMILIES
from tests.cases.tiny import metadata, write_tiny
from woolly.errors import ModelError, WoollyError
from woolly.gguf import open_gguf
from woolly.models import trace
from woolly.plan import rope_frequencies
from woolly.runtime import Options
from woolly.runtime.cpu import CpuBackend

MISSING = object()


def with_key(file, key, value):
    """Trace a file with one changed key."""
    changed = {name: found for name, found in file.metadata.items() if name != key}
    return SimpleNamespace(
        metadata=changed if value is MISSING else changed | {key: value}, tensors=file.tensors, path=file.path
    )


@pytest.mark.parametrize("name", FAMILIES | ENCODERS)
def test_wrong_number_gives_a_one_line_error(name, tmp_path):
    tiny = (FAMILIES | ENCODERS)[name]
    with open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file:
        for key, right in metadata(tiny).items():
            if isinstance(right, (str, bool)):
                continue
            for value in (0, -1, 2**32, MISSING):
                try:
                    trace(with_key(file, f"{tiny.architecture}.{key}", value))
                except WoollyError as error:
                    assert error.__cause__ is None, (key, value)  # the model's own check said it


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("minicpm", "logit_scale", 0.0, r"minicpm\.logit_scale is 0"),
        ("gemma4-e", "attention.shared_kv_layers", 6, "6 of 6 layers cannot share"),
        ("gemma4-e", "attention.shared_kv_layers", 5, "5 of 6 layers cannot share"),
        ("gemma4-e", "attention.shared_kv_layers", -1, "-1 of 6 layers cannot share"),
        ("gemma4-e", "embedding_length_per_layer_input", -8, "width of per-layer embeddings is -8"),
        ("hunyuan-dense", "rope.scaling.alpha", -4.0, "alpha is -4"),
        ("cohere2", "attention.sliding_window", MISSING, r"cohere2\.attention\.sliding_window is missing"),
        ("cohere2", "attention.sliding_window", 0, "sliding_window is 0; expected a positive"),
        ("exaone4-window", "attention.sliding_window", 0, "sliding_window is 0; expected a positive"),
        ("deci", "attention.head_count", [0, 0, 0, 0], "no layer has attention heads"),
    ],
)
def test_key_that_would_divide_by_zero_is_named(name, key, value, message, tmp_path):
    tiny = FAMILIES[name]
    with (
        open_gguf(write_tiny(tiny, tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelError, match=message),
    ):
        trace(with_key(file, f"{tiny.architecture}.{key}", value))


@pytest.mark.parametrize("error", [ZeroDivisionError, OverflowError, IndexError, TypeError, ValueError])
def test_error_inside_a_model_file_names_the_architecture(error, tmp_path, monkeypatch):
    def read(keys):
        raise error("by chance")

    monkeypatch.setattr("woolly.models.llama.read", read)
    with (
        open_gguf(write_tiny(FAMILIES["llama"], tmp_path / "tiny.gguf")) as file,
        pytest.raises(ModelError, match="cannot build the llama model from the metadata: by chance"),
    ):
        trace(file)


def test_lengths_beyond_32_bits_mean_no_limit(tmp_path):
    key = "mistral3.rope.scaling.original_context_length"
    with open_gguf(write_tiny(FAMILIES["mistral3"], tmp_path / "tiny.gguf")) as file:
        plan = trace(with_key(file, key, 2**32))
        assert {step.integer("temper_length") for step in plan.steps if step.op == "attention"} == {2**31 - 1}
        CpuBackend().compile(plan, file.tensors, Options(threads=1))


def test_olmo3_factor_is_the_complete_magnitude(tmp_path):
    with open_gguf(write_tiny(FAMILIES["olmo3"], tmp_path / "tiny.gguf")) as file:
        for value, expected in ((MISSING, 1 + 0.1 * math.log(4)), (1.25, 1.25)):
            plan = trace(with_key(file, "olmo2.rope.scaling.attn_factor", value))
            ropes = [step.rope() for step in plan.steps if step.op == "rope"]
            assert {rope_frequencies(rope)[1] for rope in ropes if rope.yarn} == {expected}
            assert {rope_frequencies(rope)[1] for rope in ropes if not rope.yarn} == {1.0}


def test_mistral3_may_name_the_length_for_query_scaling(tmp_path):
    with open_gguf(write_tiny(FAMILIES["mistral3"], tmp_path / "tiny.gguf")) as file:
        plan = trace(with_key(file, "mistral3.attention.temperature_length", 24))
        assert {step.integer("temper_length") for step in plan.steps if step.op == "attention"} == {24}


def test_phi_reads_its_rope_factors_from_tensors(tmp_path):
    for name, kind in (("phi-long", "long"), ("phi-short", "short"), ("phi", "")):
        with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as file:
            assert "phi3.rope.scaling.type" not in file.metadata
            used = {weight.name for step in trace(file).steps if step.op == "rope" for weight in step.weights}
            assert used == ({f"rope_factors_{kind}.weight"} if kind else set())
    with open_gguf(write_tiny(FAMILIES["phimoe"], tmp_path / "tiny.gguf")) as file:
        for original, kind in ((512, "short"), (16, "long")):
            plan = trace(with_key(file, "phimoe.rope.scaling.original_context_length", original))
            used = {weight.name for step in plan.steps if step.op == "rope" for weight in step.weights}
            assert used == {f"rope_factors_{kind}.weight"}
