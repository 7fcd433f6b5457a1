"""transformers encoder of a GGUF file: a function from ids and types to hidden rows or scores."""

import re

import numpy as np
import torch
import transformers

from tests.goldens.classes import neox_rows
from tests.goldens.encoder_loops import jina_bert_v2, neo_bert, nomic_bert_moe

BLOCKS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
TOP = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
}


def common(file):
    """Options that all classes know."""
    eps = file.get("attention.layer_norm_epsilon", file.get("attention.layer_norm_rms_epsilon"))
    return {
        "vocab_size": len(file.tensors["token_embd.weight"]),
        "hidden_size": int(file.get("embedding_length")),
        "intermediate_size": int(file.get("feed_forward_length")),
        "num_hidden_layers": int(file.get("block_count")),
        "num_attention_heads": int(file.get("attention.head_count")),
        "layer_norm_eps": float(eps),
        "rms_norm_eps": float(eps),
        "max_position_embeddings": int(file.get("context_length")),
        "attn_implementation": "eager",
        "pad_token_id": 0,
    }


def fill(model, file, source, extra=()):
    """Every tensor of the file goes into a parameter: `source` gives a parameter's array and tensor."""
    left = set(file.tensors) - set(extra)
    with torch.no_grad():
        for name, parameter in model.state_dict().items():
            array, names = source(name, parameter)
            left -= set(names)
            assert tuple(parameter.shape) == array.shape, (name, parameter.shape, array.shape)
            parameter.copy_(torch.from_numpy(np.array(array, np.float32)))
    assert not left, f"not loaded: {sorted(left)}"
    return model.float().eval()


def renamed(file, top, blocks, layers):
    """The source of parameters that differ from tensors by name alone."""

    def source(name, parameter):
        path, kind = name.rsplit(".", 1)
        if block := re.fullmatch(layers, path):
            found = f"blk.{block[1]}.{blocks[block[2]]}.{kind}"
        else:
            found = f"{top[path]}.{kind}"
        return file.tensors[found], [found]

    return source


def bert(file):
    types = np.atleast_2d(file.tensors["token_types.weight"])
    options = common(file) | {"type_vocab_size": len(types), "hidden_act": "gelu"}
    if "cls.weight" in file.tensors:
        return roberta(file, options)
    model = transformers.BertModel(transformers.BertConfig(**options), add_pooling_layer=False)
    fill(model, file, renamed(file, TOP, BLOCKS, r"encoder\.layer\.(\d+)\.(.*)"))
    return lambda ids, types: model(input_ids=ids, token_type_ids=types).last_hidden_state[0][None]


def roberta(file, options):
    """Position table of RoBERTa with its two rows before the first position, which converters cut off."""
    n = len(file.tensors["cls.output.weight"])
    options |= {"num_labels": n, "max_position_embeddings": options["max_position_embeddings"] + 2, "pad_token_id": 1}
    model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**options))
    plain = renamed(file, TOP, BLOCKS, r"encoder\.layer\.(\d+)\.(.*)")

    def source(name, parameter):
        array, names = plain(name.removeprefix("roberta."), parameter)
        if "position" in name:
            array = np.concatenate([np.full((2, array.shape[1]), 1e3), array])
        return array.reshape(parameter.shape), names

    fill(model, file, source)
    # Token 1 stands for padding in RoBERTa's own vocabulary alone.
    positions = lambda ids: torch.arange(ids.shape[1])[None] + 2  # noqa: E731
    return lambda ids, types: model(input_ids=ids, token_type_ids=types, position_ids=positions(ids)).logits


def hidden(model):
    return lambda ids, types: model(input_ids=ids).last_hidden_state


def split(file, found, parameter, part, parts=3):
    """A part of the rows of a tensor that holds several matrices."""
    whole = file.tensors[found]
    n = len(whole) // parts
    return whole[part * n : part * n + n].reshape(parameter.shape), [found]


def modern_bert(file):
    base = {"rope_type": "default"}
    ropes = {
        "full_attention": base | {"rope_theta": float(file.get("rope.freq_base"))},
        "sliding_attention": base | {"rope_theta": float(file.get("rope.freq_base_swa"))},
    }
    n = int(file.get("block_count"))
    options = common(file) | {
        "norm_eps": float(file.get("attention.layer_norm_epsilon")),
        "layer_types": ["sliding_attention" if i % 3 else "full_attention" for i in range(n)],
        "rope_parameters": ropes,
        "local_attention": int(file.get("attention.sliding_window")),
        "hidden_activation": file.get("hidden_activation", "gelu"),
        "classifier_pooling": "mean",
        "num_labels": 3,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "cls_token_id": 0,
        "sep_token_id": 0,
    }
    top = {"embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm", "final_norm": "output_norm"}
    top |= {"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"}
    blocks = {"attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
    blocks |= {"attn_norm": "attn_norm", "mlp_norm": "ffn_norm"}
    config = transformers.ModernBertConfig(**options)
    has_head = "cls.weight" in file.tensors
    kind = transformers.ModernBertForSequenceClassification if has_head else transformers.ModernBertModel
    plain = renamed(file, top, blocks, r"layers\.(\d+)\.(.*)")
    model = fill(kind(config), file, lambda name, parameter: plain(name.removeprefix("model."), parameter))
    return (lambda ids, types: model(input_ids=ids).logits) if has_head else hidden(model)


# Of classes whose layers are called like Llama's.
LIKE_LLAMA = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


def like_llama(file, name, after_attention, extra=(), **more):
    """A class whose layers are called like Llama's; `after_attention` is what it calls post_attention_layernorm."""
    options = common(file) | {
        "num_key_value_heads": int(file.get("attention.head_count_kv")),
        "head_dim": int(file.get("attention.key_length")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base"))},
        "type_vocab_size": len(np.atleast_2d(file.tensors.get("token_types.weight", 0))),
    }
    config = getattr(transformers, more.pop("config", f"{name}Config"))(**options | more)
    model = getattr(transformers, name if name.endswith("Model") else f"{name}Model")(config)
    if hasattr(model, "pooler"):
        model.pooler = None
    names = LIKE_LLAMA | {"post_attention_layernorm": after_attention}
    plain = renamed(file, names, names, r"layers\.(\d+)\.(.*)")

    def source(name, parameter):
        layer = re.match(r"layers\.(\d+)\.", name)
        fused = f"blk.{layer[1]}.attn_qkv.weight" if layer else ""
        if fused in file.tensors and ".o_proj" not in name and "self_attn" in name:
            return split(file, fused, parameter, "qkv".index(name.split(".")[3][0]))
        array, found = plain(name, parameter)
        if file.architecture == "llama-embed" and re.search(r"attn_[qk]\.", found[0]):
            array = neox_rows("llama", array, array.shape[0] // config.head_dim)
        if file.architecture == "gemma-embedding" and "norm" in found[0]:
            array = array - 1
        return array.reshape(parameter.shape), found

    return fill(model, file, source, extra)


def nomic_bert(file):
    return hidden(like_llama(file, "NomicBert", "attn_output_norm"))


def jina_bert_v3(file):
    return hidden(like_llama(file, "JinaEmbeddingsV3", "attn_output_norm"))


def qwen3(file):
    model = like_llama(file, "Qwen3", "ffn_norm", ["cls.output.weight"])
    if "cls.output.weight" not in file.tensors:
        return hidden(model)
    head = torch.from_numpy(file.tensors["cls.output.weight"])
    return lambda ids, types: model(input_ids=ids).last_hidden_state[:, -1] @ head.T


def eurobert(file):
    return hidden(like_llama(file, "EuroBert", "ffn_norm"))


def llama_embed(file):
    """Llama with a mask that hides nothing."""
    model = like_llama(file, "Llama", "ffn_norm")
    return lambda ids, types: (
        model(input_ids=ids, attention_mask=torch.zeros(1, 1, ids.shape[1], ids.shape[1])).last_hidden_state
    )


def gemma_embedding(file):
    n, base = int(file.get("block_count")), {"rope_type": "default"}
    model = like_llama(
        file,
        "Gemma3TextModel",
        "post_attention_norm",
        ["dense_2.weight", "dense_3.weight"],
        config="Gemma3TextConfig",
        use_bidirectional_attention=True,
        query_pre_attn_scalar=int(file.get("attention.key_length")),
        sliding_window=int(file.get("attention.sliding_window")),
        layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(n)],
        rope_parameters={
            "full_attention": base | {"rope_theta": float(file.get("rope.freq_base"))},
            "sliding_attention": base | {"rope_theta": 10000.0},
        },
    )
    return hidden(model)


def t5_config(file, **more):
    """The configuration of a T5, or of its encoder alone."""
    gated = "enc.blk.0.ffn_gate.weight" in file.tensors
    return transformers.T5Config(
        vocab_size=len(file.tensors["token_embd.weight"]),
        d_model=int(file.get("embedding_length")),
        d_kv=int(file.get("attention.key_length")),
        d_ff=int(file.get("feed_forward_length")),
        num_layers=int(file.get("block_count")),
        num_heads=int(file.get("attention.head_count")),
        relative_attention_num_buckets=int(file.get("attention.relative_buckets_count")),
        layer_norm_epsilon=float(file.get("attention.layer_norm_rms_epsilon")),
        feed_forward_proj="gated-gelu" if gated else "relu",
        attn_implementation="eager",
        **more,
    )


def t5encoder(file):
    names = {
        "layer.0.SelfAttention.q": "attn_q",
        "layer.0.SelfAttention.k": "attn_k",
        "layer.0.SelfAttention.v": "attn_v",
        "layer.0.SelfAttention.o": "attn_o",
        "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b",
        "layer.0.layer_norm": "attn_norm",
        "layer.1.DenseReluDense.wi": "ffn_up",
        "layer.1.DenseReluDense.wi_0": "ffn_gate",
        "layer.1.DenseReluDense.wi_1": "ffn_up",
        "layer.1.DenseReluDense.wo": "ffn_down",
        "layer.1.layer_norm": "ffn_norm",
    }

    def source(name, parameter):
        if block := re.fullmatch(r"encoder\.block\.(\d+)\.(.*)\.weight", name):
            found = f"enc.blk.{block[1]}.{names[block[2]]}.weight"
        else:
            found = "enc.output_norm.weight" if "norm" in name else "token_embd.weight"
        return file.tensors[found], [found]

    return hidden(fill(transformers.T5EncoderModel(t5_config(file)), file, source))


MODELS = {
    "bert": bert,
    "eurobert": eurobert,
    "gemma-embedding": gemma_embedding,
    "jina-bert-v2": jina_bert_v2,
    "jina-bert-v3": jina_bert_v3,
    "llama-embed": llama_embed,
    "modern-bert": modern_bert,
    "neo-bert": neo_bert,
    "nomic-bert": nomic_bert,
    "nomic-bert-moe": nomic_bert_moe,
    "qwen3": qwen3,
    "t5encoder": t5encoder,
}


def model_of(file):
    """The function of a file's architecture."""
    return MODELS[file.architecture](file)
