"""Encoders' checkpoints become the tiny models that they came from; configurations are those of published ones."""

import json
import re

import numpy as np
import pytest

from tests.cases.encoders import ENCODERS, POOLINGS
from tests.cases.tiny import write_tiny
from tests.convert.folders import safetensors, write_folder
from woolly.convert import choose_types, open_checkpoint, plan_conversion, write_draft
from woolly.errors import UnsupportedError
from woolly.gguf import open_gguf
from woolly.models import trace

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 64,
}
LLAMA = {"num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
BERT = {
    "token_embd.": "embeddings.word_embeddings.",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.": "encoder.layer.",
    "attn_output_norm": "attention.output.LayerNorm",
    "layer_output_norm": "output.LayerNorm",
    "attn_output.": "attention.output.dense.",
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "cls.output": "classifier.out_proj",
    "cls.": "classifier.dense.",
}
MODERN = {
    "token_embd.": "model.embeddings.tok_embeddings.",
    "token_embd_norm": "model.embeddings.norm",
    "output_norm": "model.final_norm",
    "blk.": "model.layers.",
    "attn_qkv": "attn.Wqkv",
    "attn_output.": "attn.Wo.",
    "ffn_up": "mlp.Wi",
    "ffn_down": "mlp.Wo",
    "ffn_norm": "mlp_norm",
}
NOMIC = {
    "token_embd.": "embeddings.word_embeddings.",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.": "encoder.layers.",
    "attn_qkv": "attn.Wqkv",
    "attn_output_norm": "norm1",
    "layer_output_norm": "norm2",
    "attn_output.": "attn.out_proj.",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
}
DECODER = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk.": "layers.",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "attn_output.": "self_attn.o_proj.",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "attn_q.": "self_attn.q_proj.",
    "attn_k.": "self_attn.k_proj.",
    "attn_v.": "self_attn.v_proj.",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODERN_KEYS = {"num_hidden_layers": 4, "local_attention": 8, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
GEMMA = {"num_hidden_layers": 7, "sliding_window": 8, "rope_theta": 1e6, "rope_local_base_freq": 10000.0}
ROWS = {
    "bert-mean": ("BertModel", BERT, {"model_type": "bert"}),
    "bert-cls": ("BertModel", BERT, {"model_type": "bert", "num_attention_heads": 8}),
    "roberta-rank": (
        "XLMRobertaForSequenceClassification",
        BERT,
        {
            "model_type": "xlm-roberta",
            "max_position_embeddings": 66,
            "pad_token_id": 1,
            "id2label": {"0": "bad", "1": "fair", "2": "good"},
        },
    ),
    "modern-bert": ("ModernBertModel", MODERN, MODERN_KEYS),
    "nomic-bert": ("NomicBertModel", NOMIC, {"rotary_emb_base": 1000.0}),
    "eurobert": ("EuroBertModel", DECODER | {"ffn_norm": "post_attention_layernorm"}, LLAMA),
    "gemma-embedding": (
        "Gemma3TextModel",
        DECODER | {"ffn_norm": "pre_feedforward_layernorm"},
        LLAMA | GEMMA | {"query_pre_attn_scalar": 16},
    ),
}
MODES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}


def renamed(name, table):
    for old, new in table.items():
        if old in name:
            name = name.replace(old, new)
    return name


@pytest.fixture(autouse=True)
def unproved(monkeypatch):
    plain = lambda tokens, about: (tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]}, 0)  # noqa: E731
    monkeypatch.setattr("woolly.convert.conversion_plan.verify_tokenizer", plain)


def write(name, file, folder):
    kind, table, more = ROWS[name]
    arrays, dense = {}, {}
    for tensor in file.tensors.values():
        value = tensor.dequantize()
        if tensor.name.startswith("dense_"):
            dense[tensor.name[6]] = value
            continue
        if tensor.name == "position_embd.weight" and "roberta" in more["model_type"]:
            value = np.concatenate([np.full((2, 64), 9, np.float32), value])
        if name == "gemma-embedding" and "norm" in tensor.name:
            value = value - np.float32(1)
        arrays[renamed(tensor.name, table)] = np.ascontiguousarray(value, np.float32)
    write_folder(folder, arrays, {"architectures": [kind]} | SIZES | more, settings={"sep_token": "<|im_end|>"})
    for number, value in dense.items():
        (folder / f"{number}_Dense").mkdir()
        (folder / f"{number}_Dense" / "model.safetensors").write_bytes(safetensors({"linear.weight": value}))
    (folder / "1_Pooling").mkdir()
    kinds = {number: word for word, number in POOLINGS.items()}
    pooling = kinds[int(file.metadata[f"{file.metadata['general.architecture']}.pooling_type"])]
    if pooling in MODES:
        modes = dict.fromkeys(MODES.values(), False) | {MODES[pooling]: True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes | {"word_embedding_dimension": 64}))


@pytest.mark.parametrize("name", ROWS)
def test_encoder_checkpoint_converts_to_the_same_model(name, tmp_path):
    with open_gguf(write_tiny(ENCODERS[name], tmp_path / "tiny.gguf")) as wanted:
        write(name, wanted, tmp_path / "folder")
        plan = plan_conversion(open_checkpoint(tmp_path / "folder"))
        write_draft(plan, choose_types(plan, None), tmp_path / "out.gguf", threads=1)
        with open_gguf(tmp_path / "out.gguf") as made:
            assert set(made.tensors) == set(wanted.tensors)
            for tensor, one in wanted.tensors.items():
                np.testing.assert_allclose(made.tensors[tensor].dequantize(), one.dequantize(), atol=1.2e-7)
            assert trace(made) == trace(wanted)


def test_unsupported_pooling_is_rejected(tmp_path):
    with open_gguf(write_tiny(ENCODERS["bert-mean"], tmp_path / "tiny.gguf")) as wanted:
        write("bert-mean", wanted, tmp_path / "folder")
    path = tmp_path / "folder" / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(UnsupportedError, match=re.escape("pooling_mode_max_tokens")):
        plan_conversion(open_checkpoint(tmp_path / "folder"))
