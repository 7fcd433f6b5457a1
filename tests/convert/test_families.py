"""Every architecture's checkpoint becomes the tiny model that it came from, bit by bit."""

from pathlib import Path

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.convert.folders import checkpoint_of, listing
from woolly import LLM
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.convert import conversion_plan as draft_module
from woolly.convert.families import FAMILIES as CONVERTED
from woolly.convert.families import variants
from woolly.gguf import open_gguf
from woolly.models import architectures, trace

# Files that say the same otherwise: K and V not absorbed, BitNet's matrices with scales beside them, a base with alpha.
OTHERWISE = ("deepseek-v2-lite", "bitnet", "hunyuan-dense")

GOLDENS = Path(__file__).parent.parent / "goldens"


@pytest.fixture
def unproved(monkeypatch):
    """Without the comparison of tokens, which other tests make: one vocabulary serves all tiny models."""
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr(draft_module, "verify_tokenizer", plain)


@pytest.mark.parametrize("name", sorted(set(listing()) - set(OTHERWISE)))
def test_checkpoint_converts_to_the_same_model(name, tmp_path, unproved):
    path = write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")
    with open_gguf(path) as wanted:
        plan = plan_conversion(open_checkpoint(checkpoint_of(wanted, tmp_path / "folder")))
        write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
        with open_gguf(tmp_path / "out.gguf") as made:
            assert set(made.tensors) == set(wanted.tensors)
            for tensor, one in wanted.tensors.items():
                assert (made.tensors[tensor].type, made.tensors[tensor].shape) == (one.type, one.shape), tensor
                # exp(log(x)) is x but for a last bit; everything else is the same bytes.
                if tensor.endswith("ssm_a"):
                    np.testing.assert_allclose(made.tensors[tensor].dequantize(), one.dequantize(), rtol=3e-7)
                elif "norm" in tensor:  # 1 taken off and added again
                    np.testing.assert_allclose(made.tensors[tensor].dequantize(), one.dequantize(), atol=1.2e-7)
                else:
                    assert made.tensors[tensor].data.tobytes() == one.data.tobytes(), tensor
            assert trace(made) == trace(wanted)
            for key in wanted.metadata:
                if key.startswith("tokenizer."):
                    assert np.array_equal(made.metadata[key], wanted.metadata[key]), key


@pytest.mark.parametrize("name", OTHERWISE)
def test_checkpoint_in_another_layout_computes_the_same(name, tmp_path, unproved):
    golden = np.load(GOLDENS / f"tiny-{name}.npz")
    with open_gguf(write_tiny(FAMILIES[name], tmp_path / "tiny.gguf")) as wanted:
        plan = plan_conversion(open_checkpoint(checkpoint_of(wanted, tmp_path / "folder")))
    write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
    with LLM(tmp_path / "out.gguf", backend="reference") as llm:
        logits = llm.logits(golden["ids"].tolist())
    distances = np.linalg.norm(logits[:, :: int(golden["stride"])] - golden["logits"], axis=1) / golden["norm"]
    assert distances.max() < 1e-4


def test_family_table_has_every_supported_architecture():
    renamed = {"nemotron_h_moe", "nomic-bert-moe"}  # rows of others, by what config.json says
    # Its checkpoints hold experts in 4 bits with shared exponents, and a table of whole numbers: no source reads these.
    # The one name that Ling 3 has for the gates of both kinds of layers stands for two tensors; Qwen 3.8 Flash Next has
    # its table in 512 parts; Hunyuan 4 is published as GGUF files, too.
    # Whisper's are opened as whisper.cpp's files.
    # Those of HRM-Text have two stacks with their own layer numbers; GLM 5.3 Flash is published as GGUF files, too.
    refused = {"deepseek4", "bailingmoe3", "qwen4exp", "hy_v4", "whisper", "hrm_text", "glm5next", "glm5-next"}
    rows = {"parakeet-tdt"} | {family.architecture for family in variants.FAMILIES}  # of other architectures
    assert (set(CONVERTED) - rows) | renamed == set(architectures()) - refused
