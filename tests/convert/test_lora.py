"""Adapters of PEFT: converted, they change answers as they do there; merged, the model answers so by itself."""

import json

import numpy as np
import pytest

from tests.cases.families import FAMILIES
from tests.cases.tiny import TINY, write_tiny
from tests.cli.terminal import woolly
from tests.convert.folders import checkpoint_of, safetensors
from woolly import LLM, SamplingParams
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.convert.lora import convert_lora
from woolly.convert.safetensors import read_safetensors
from woolly.errors import ModelError, UnsupportedError, WoollyError
from woolly.gguf import GGUFWriter, open_gguf

RANK, ALPHA = 4, 6.0
IDS = [5, 9, 200, 31, 7]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A llama, whose q and k change the order of their rows, and its checkpoint."""
    folder = tmp_path_factory.mktemp("base")
    path = write_tiny(TINY["llama"], folder / "llama.gguf")
    with open_gguf(path) as file:
        return path, checkpoint_of(file, folder / "llama")


def write_adapter(
    folder,
    checkpoint,
    names=("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"),
    layers="model.layers",
    scales=None,
    **settings,
):
    """A PEFT folder, and the checkpoint's matrices with what it adds. `scales` has ranks and scales by name."""
    stored = {name: one.array() for name, one in open_checkpoint(checkpoint).tensors.items()}
    random, parts = np.random.RandomState(3), {}
    stems = [f"{layers}.{i}.{name}" for name in names for i in range(2)]
    for stem in [one for one in stems if f"{one}.weight" in stored]:
        weight = f"{stem}.weight"
        is_transposed = layers == "transformer.h"  # Conv1D
        rows, columns = stored[weight].shape[:: -1 if is_transposed else 1]
        rank, scale = (scales or {}).get(stem.rpartition(".")[2], (RANK, ALPHA / RANK))
        a, b = (random.standard_normal(s).astype(np.float32) * 0.3 for s in ((rank, columns), (rows, rank)))
        parts |= {f"base_model.model.{stem}.lora_{x}.weight": y for x, y in (("A", a), ("B", b))}
        product = b @ a
        stored[weight] = (stored[weight] + scale * (product.T if is_transposed else product)).astype(np.float32)
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(safetensors(parts))
    usual = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_dora": False}
    (folder / "adapter_config.json").write_text(json.dumps(usual | settings))
    return stored


def test_adapter_and_merged_file_answer_like_the_merged_checkpoint(base, tmp_path):
    model, checkpoint = base
    merged = write_adapter(tmp_path / "peft", checkpoint)
    whole = tmp_path / "whole"
    whole.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (whole / name).write_bytes((checkpoint / name).read_bytes())
    (whole / "model.safetensors").write_bytes(safetensors(merged))
    woolly("convert", whole, tmp_path / "whole.gguf")
    woolly("convert", "--lora", "--base", checkpoint, tmp_path / "peft", tmp_path / "lora.gguf")
    woolly("export", model, tmp_path / "merged.gguf", "--lora", tmp_path / "lora.gguf")
    with LLM(tmp_path / "whole.gguf", backend="reference") as llm:
        wanted = llm.logits(IDS)
    with LLM(tmp_path / "merged.gguf", backend="reference") as llm:
        np.testing.assert_allclose(llm.logits(IDS), wanted, atol=2e-5)
    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with LLM(model, adapters=[tmp_path / "lora.gguf"]) as llm, LLM(tmp_path / "whole.gguf") as other:
        assert llm.generate("the", greedy).token_ids == other.generate("the", greedy).token_ids


def test_adapter_of_some_experts_changes_only_those(tmp_path):
    path = write_tiny(FAMILIES["qwen3moe"], tmp_path / "moe.gguf")
    with open_gguf(path) as file:
        checkpoint = checkpoint_of(file, tmp_path / "moe")
    names = [f"mlp.experts.{e}.{x}_proj" for e in (0, 2, 3) for x in ("gate", "up", "down")]
    merged = write_adapter(tmp_path / "peft", checkpoint, [*names, "self_attn.v_proj"])
    assert convert_lora(tmp_path / "peft", checkpoint, tmp_path / "lora.gguf") == 20
    (checkpoint / "model.safetensors").write_bytes(safetensors(merged))
    plan = plan_conversion(open_checkpoint(checkpoint))
    write_draft(plan, choose_types(plan, None), tmp_path / "whole.gguf", threads=1)
    with (
        LLM(tmp_path / "whole.gguf", backend="reference") as whole,
        LLM(path, adapters=[tmp_path / "lora.gguf"], backend="reference") as llm,
    ):
        np.testing.assert_allclose(llm.logits(IDS), whole.logits(IDS), atol=1e-4)


def test_scale_zero_leaves_the_weights(base, tmp_path):
    model, checkpoint = base
    write_adapter(tmp_path / "peft", checkpoint)
    woolly("convert", "--lora", "--base", checkpoint, tmp_path / "peft", tmp_path / "lora.gguf")
    woolly("export", model, tmp_path / "same.gguf", "--lora-scaled", f"{tmp_path / 'lora.gguf'}:0")
    with open_gguf(model) as one, open_gguf(tmp_path / "same.gguf") as other:
        assert all(other.tensors[name].data.tobytes() == one.tensors[name].data.tobytes() for name in one.tensors)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"peft_type": "IA3"},
        {"rank_pattern": {"q_proj": 8}},  # the matrices have another rank
        {"rank_pattern": {"(q+)+": 8}},
        {"init_lora_weights": "pissa"},
        {"layer_replication": [[0, 1], [0, 1]]},
        {"a_setting_of_tomorrow": True},
    ],
)
def test_adapter_inexpressible_in_gguf_is_rejected(settings, base, tmp_path):
    write_adapter(tmp_path / "peft", base[1], **settings)
    with pytest.raises(WoollyError):
        woolly("convert", "--lora", "--base", base[1], tmp_path / "peft", tmp_path / "lora.gguf")
    assert not (tmp_path / "lora.gguf").exists()


def test_folder_without_an_adapter_is_rejected(base, tmp_path):
    with pytest.raises(ModelError, match=r"adapter_config\.json is missing; expected the folder of a PEFT adapter"):
        woolly("convert", "--lora", "--base", base[1], tmp_path, tmp_path / "lora.gguf")


def test_unknown_adapter_tensors_are_rejected_by_name(base, tmp_path):
    write_adapter(tmp_path / "peft", base[1])
    path = tmp_path / "peft" / "adapter_model.safetensors"
    path.write_bytes(safetensors({"base_model.model.lm_head.modules_to_save.weight": np.zeros((2, 2), np.float32)}))
    with pytest.raises(UnsupportedError, match=r"lm_head\.modules_to_save\.weight"):
        woolly("convert", "--lora", "--base", base[1], tmp_path / "peft", tmp_path / "lora.gguf")


def test_dry_run_leaves_the_target_unchanged(base, tmp_path):
    write_adapter(tmp_path / "peft", base[1])
    (tmp_path / "lora.gguf").write_bytes(b"mine")
    wanted = ["--lora", "--base", base[1], tmp_path / "peft", tmp_path / "lora.gguf", "--dry-run"]
    assert "would be an adapter that changes 6 tensors" in woolly("convert", *wanted)
    assert json.loads(woolly("convert", *wanted, "--json"))["tensors"] == 6
    assert (tmp_path / "lora.gguf").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("adapter.lora.alpha", "six", "alpha is 'six'; "),
        ("adapter.lora.alpha", float("nan"), "alpha is nan; "),
        ("general.type", [1, 2], "not a LoRA adapter"),
        ("general.architecture", [1, 2], "for a different architecture|is for ''"),
        (None, (4,), "does not fit|dimensions; expected 2 or 3"),
    ],
)
def test_damaged_adapter_gives_a_one_line_error(key, value, says, base, tmp_path):
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    writer = GGUFWriter(tmp_path / "lora.gguf")
    for name, one in (keys | ({key: value} if key else {})).items():
        writer.add(name, one)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros(value if key is None else (4, 64), np.float32))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.zeros((64, 4), np.float32))
    writer.write()
    with pytest.raises(ModelError, match=says):
        woolly("export", base[0], tmp_path / "out.gguf", "--lora", tmp_path / "lora.gguf")
    with pytest.raises(ModelError, match=says):
        LLM(base[0], adapters=[tmp_path / "lora.gguf"], backend="reference")


def answers_like_merged(path, checkpoint, stored, tmp_path):
    """Compare a converted adapter with the converted checkpoint that has it merged."""
    convert_lora(tmp_path / "peft", checkpoint, tmp_path / "lora.gguf")
    (checkpoint / "model.safetensors").write_bytes(safetensors(stored))
    plan = plan_conversion(open_checkpoint(checkpoint))
    write_draft(plan, choose_types(plan, None), tmp_path / "whole.gguf", threads=1)
    with (
        LLM(tmp_path / "whole.gguf", backend="reference") as whole,
        LLM(path, adapters=[tmp_path / "lora.gguf"], backend="reference") as llm,
    ):
        np.testing.assert_allclose(llm.logits(IDS), whole.logits(IDS), atol=1e-4)


def tiny_checkpoint(family, tmp_path, monkeypatch):
    quick = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", quick)
    path = write_tiny(FAMILIES[family] if family in FAMILIES else TINY[family], tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        return path, checkpoint_of(file, tmp_path / "checkpoint")


def test_adapter_of_transposed_matrices_is_converted(tmp_path, monkeypatch):
    path, checkpoint = tiny_checkpoint("gpt2", tmp_path, monkeypatch)
    names = ["attn.c_attn", "attn.c_proj", "mlp.c_fc"]
    stored = write_adapter(tmp_path / "peft", checkpoint, names, "transformer.h", fan_in_fan_out=True)
    answers_like_merged(path, checkpoint, stored, tmp_path)


@pytest.mark.parametrize("root", [False, True])
def test_each_matrix_may_have_its_rank_and_scale(root, tmp_path, monkeypatch):
    path, checkpoint = tiny_checkpoint("llama", tmp_path, monkeypatch)
    under = lambda rank: rank**0.5 if root else rank  # noqa: E731
    scales = {"q_proj": (8, ALPHA / under(8)), "v_proj": (2, 3 / under(2)), "down_proj": (RANK, ALPHA / under(RANK))}
    settings = {"rank_pattern": {"q_proj": 8, r"layers\.\d+\.self_attn\.v_proj": 2}, "alpha_pattern": {"v_proj": 3}}
    stored = write_adapter(tmp_path / "peft", checkpoint, scales=scales, use_rslora=root, **settings)
    answers_like_merged(path, checkpoint, stored, tmp_path)


def test_adapter_of_reordered_columns_is_converted(tmp_path, monkeypatch):
    path, checkpoint = tiny_checkpoint("qwen35", tmp_path, monkeypatch)
    stored = write_adapter(
        tmp_path / "peft", checkpoint, ["linear_attn.out_proj", "linear_attn.in_proj_qkv", "mlp.up_proj"]
    )
    answers_like_merged(path, checkpoint, stored, tmp_path)


def with_parts(folder, parts):
    path = folder / "adapter_model.safetensors"
    own = {name: one.array() for name, one in read_safetensors(path).items()}
    path.write_bytes(safetensors(own | parts))


def test_base_layers_next_to_an_adapter_must_be_unchanged(base, tmp_path):
    write_adapter(tmp_path / "peft", base[1])
    head = open_checkpoint(base[1]).tensors["lm_head.weight"].array()
    random = np.random.RandomState(1)
    halves = {"A": random.rand(RANK, head.shape[1]), "B": random.rand(head.shape[0], RANK)}
    parts = {f"base_model.model.lm_head.lora_{x}.weight": y.astype(np.float32) for x, y in halves.items()}
    with_parts(tmp_path / "peft", parts | {"base_model.model.lm_head.base_layer.weight": head})
    assert convert_lora(tmp_path / "peft", base[1], tmp_path / "lora.gguf") == 7
    with open_gguf(tmp_path / "lora.gguf") as file:
        assert "output.weight.lora_a" in file.tensors
    with_parts(tmp_path / "peft", {"base_model.model.lm_head.base_layer.weight": head * 2})
    with pytest.raises(UnsupportedError, match=r"its own lm_head, which differs"):
        convert_lora(tmp_path / "peft", base[1], tmp_path / "lora.gguf")


def test_adapter_of_the_token_embeddings_is_rejected(base, tmp_path):
    write_adapter(tmp_path / "peft", base[1])
    table = {"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((RANK, 320), np.float32)}
    with_parts(tmp_path / "peft", table)
    with pytest.raises(UnsupportedError, match=r"changes the token embeddings .* train it without embed_tokens"):
        convert_lora(tmp_path / "peft", base[1], tmp_path / "lora.gguf")


def test_adapter_of_a_tied_head_is_rejected(base, tmp_path):
    write_adapter(tmp_path / "peft", base[1])
    parts = {
        "base_model.model.lm_head.lora_A.weight": (RANK, 64),
        "base_model.model.lm_head.lora_B.weight": (320, RANK),
    }
    with_parts(tmp_path / "peft", {name: np.zeros(shape, np.float32) for name, shape in parts.items()})
    tied = tmp_path / "tied"
    tied.mkdir()
    config = json.loads((base[1] / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tied / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="'lm_head', which has no tensor of its own"):
        convert_lora(tmp_path / "peft", tied, tmp_path / "lora.gguf")
