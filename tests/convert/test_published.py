"""Checkpoints as their makers publish them become the tiny models that they came from, byte by byte."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.cases.diffusion import DIFFUSION
from tests.cases.encoder_decoders import READERS
from tests.cases.encoders import ENCODERS
from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.convert.folders import tensors, write_folder
from tests.convert.published import ROWS as DECODERS
from tests.convert.published_index import ROWS as INDEXED
from tests.convert.published_more import ROWS as OTHERS
from tests.convert.published_skeletons import ROWS as SKELETONS
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.convert.families import FAMILIES as CONVERTED
from woolly.convert.hyperparameters import Hyperparameters
from woolly.errors import ModelError
from woolly.gguf import open_gguf
from woolly.models import trace

ROWS = DECODERS | OTHERS | INDEXED | SKELETONS
TINIES = {**FAMILIES, **ENCODERS, **READERS, **DIFFUSION}
# Its class has the width and the factor of small experts as constants.
GROVE = TINIES["grovemoe"]
TINIES["grovemoe"] = replace(GROVE, head_dim=16, extra=GROVE.extra | {"expert_group_scale": 0.05})
# Constants of the class.
MAPLE, TALKIE = TINIES["maple"], TINIES["talkie"]
TINIES["maple"] = replace(MAPLE, extra=MAPLE.extra | {"swiglu_clamp_exp": [7.0] * 5})
TINIES["talkie"] = replace(
    TALKIE, extra=TALKIE.extra | {"attention.layer_norm_rms_epsilon": float(np.finfo(np.float32).eps)}
)
# Tensors that lose a last bit on the way: exp of a logarithm, a constant taken off and added again.
ROUNDED = ("ssm_a", "norm", "norm.weight", "_norm")


@pytest.fixture(autouse=True)
def unproved(monkeypatch):
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", plain)


@pytest.mark.parametrize("name", ROWS)
def test_published_checkpoint_converts_to_the_same_model(name, tmp_path):
    with open_gguf(write_tiny(TINIES[name], tmp_path / "tiny.gguf")) as wanted:
        kind, arrays, config = ROWS[name](wanted)
        arrays = {path: np.ascontiguousarray(value, np.float32) for path, value in arrays.items()}
        write_folder(tmp_path / "folder", arrays, {"architectures": [kind]} | config)
        if wanted.metadata.get(f"{wanted.metadata['general.architecture']}.pooling_type") == 1:
            (tmp_path / "folder" / "1_Pooling").mkdir()
            (tmp_path / "folder" / "1_Pooling" / "config.json").write_text(
                json.dumps({"pooling_mode_mean_tokens": True})
            )
        plan = plan_conversion(open_checkpoint(tmp_path / "folder"))
        write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
        with open_gguf(tmp_path / "out.gguf") as made:
            assert set(made.tensors) == set(wanted.tensors)
            for tensor, one in wanted.tensors.items():
                other = made.tensors[tensor]
                assert (other.type, other.shape) == (one.type, one.shape), tensor
                if tensor.endswith(ROUNDED):
                    np.testing.assert_allclose(other.dequantize(), one.dequantize(), rtol=3e-7, atol=1.2e-7)
                else:
                    assert other.data.tobytes() == one.data.tobytes(), tensor
            assert trace(made) == trace(wanted)


def test_output_matrix_normed_by_its_class_is_normed(tmp_path):
    with open_gguf(write_tiny(TINIES["bailingmoe"], tmp_path / "tiny.gguf")) as wanted:
        kind, arrays, config = ROWS["bailingmoe"](wanted)
        arrays = {path: np.ascontiguousarray(value, np.float32) for path, value in arrays.items()}
        write_folder(tmp_path / "folder", arrays, {"architectures": [kind], "norm_head": True} | config)
        plan = plan_conversion(open_checkpoint(tmp_path / "folder"))
        write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
    with open_gguf(tmp_path / "out.gguf") as made:
        norms = np.linalg.norm(made.tensors["output.weight"].dequantize(), axis=0)
    np.testing.assert_allclose(norms, 1, atol=1e-5)
    second = Hyperparameters({"vocab_size": 125696}, "config.json")
    (op,) = CONVERTED["baichuan"].changes(second, "output.weight", 0)
    np.testing.assert_allclose(np.linalg.norm(op.apply(arrays["lm_head.weight"]), axis=1), 1, atol=1e-5)


HALVES = {"mlp_multipliers": [1.0, 1.0], "embedding_multiplier": 8.0, "lm_head_multiplier": 0.5}


@pytest.mark.parametrize("name", ["jais", "bailingmoe", "falcon-h1"])
def test_tied_embedding_gives_the_output_matrix_its_own_factor(name, tmp_path):
    """Safetensors has no second name of a tensor: readers would take the changed table of tokens for logits."""
    with open_gguf(write_tiny(TINIES[name], tmp_path / "tiny.gguf")) as wanted:
        if name in ROWS:
            kind, arrays, config = ROWS[name](wanted)
        else:
            arrays, entry = tensors(wanted)
            kind, config = entry["class"], entry["config"] | HALVES
    arrays = {path: np.ascontiguousarray(value, np.float32) for path, value in arrays.items() if "lm_head" not in path}
    (table,) = [
        value
        for path, value in arrays.items()
        if path.endswith(("wte.weight", "embeddings.weight", "embed_tokens.weight"))
    ]
    own = {"norm_head": True} if name == "bailingmoe" else {}  # an error in others, which have no such setting
    config = {"architectures": [kind]} | own | config | {"tie_word_embeddings": True}
    plan = plan_conversion(open_checkpoint(write_folder(tmp_path / "folder", arrays, config)))
    (piece,) = plan.targets["output.weight"].pieces
    normed = table / np.linalg.norm(table, axis=0)
    np.testing.assert_allclose(piece.array(True), normed if name == "bailingmoe" else table * 0.5, atol=1e-6)
    assert plan.targets["token_embd.weight"].shape == plan.targets["output.weight"].shape
    config["tie_word_embeddings"] = False
    with pytest.raises(ModelError, match="the checkpoint has no output matrix"):
        plan_conversion(open_checkpoint(write_folder(tmp_path / "untied", arrays, config)))
