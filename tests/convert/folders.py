"""Checkpoints of the tiny models, named and configured as transformers saves them.

`tests/goldens/checkpoints.json` lists what transformers wrote for each model: its class, its configuration, names and
shapes (`tests/goldens/make_checkpoints.py`). The values come from the model's GGUF tensors through the goldens' own
table, which transformers' logits prove. So two tables that were written apart must undo each other.
"""

import json
import re
import struct
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.cases.tiny import byte_vocabulary
from tests.goldens import classes, hybrids, older

LISTING = Path(__file__).parent.parent / "goldens" / "checkpoints.json"
PARTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@cache
def listing():
    return json.loads(LISTING.read_text())


class File:
    """A GGUF file as the goldens' table wants it."""

    def __init__(self, file):
        self.fields = {key: file.metadata[key] for key in file.metadata}
        self.tensors = {name: tensor.dequantize() for name, tensor in file.tensors.items()}
        self.architecture = self.fields["general.architecture"]

    def get(self, key, default=None):
        return self.fields.get(f"{self.architecture}.{key}", default)


def names(entry):
    """Every tensor of a checkpoint with its shape, experts one by one."""
    config = entry["config"]
    count = next((config[x] for x in ("num_local_experts", "num_experts", "n_routed_experts") if x in config), 0)
    out = dict(entry["top"])
    for i, kind in enumerate(entry["layers"]):
        for inside, shape in entry["kinds"][kind].items():
            for e in range(count) if "{e}" in inside else [0]:
                out[f"{entry['prefix']}{i}.{inside.replace('{e}', str(e))}"] = shape
    return out


def array(file, name, shape):
    """The value of one tensor."""
    kind = next((one for one in (hybrids, older) if file.architecture in one.CLASSES), classes)

    def source(name, *shape):
        return kind.source(file, name, SimpleNamespace(shape=tuple(shape)))[0]

    if "act_fn" in name:
        values = file.fields[f"xielu.{name.rpartition('.')[2]}"]
        return np.asarray(values[int(name.split(".")[2])]).reshape(shape)
    if name.endswith(("slope_rate", "_decay")):
        return np.zeros(shape)
    if expert := re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", name):
        part, at = PARTS[expert[3]], int(expert[2])
        if part == "down":
            return source(f"{expert[1]}.down_proj")[at]
        if file.architecture == "nemotron_h_moe":
            return source(f"{expert[1]}.up_proj")[at]
        both = source(f"{expert[1]}.gate_up_proj")[at]
        return np.split(both, 2)[part == "up"]
    if name.endswith("block_sparse_moe.input_linear.weight"):
        return source(name.replace("input_linear.weight", "experts.gate_up_proj"))
    if name.endswith("block_sparse_moe.output_linear.weight"):
        return source(name.replace("output_linear.weight", "experts.down_proj"))
    if name.endswith("router.layer.weight") and file.architecture != "dbrx":
        return source(name.replace("router.layer", "router"), *shape)
    if conv := re.fullmatch(r"(.*)\.([qkv])_conv1d\.weight", name):
        return np.split(source(f"{conv[1]}.conv1d.weight"), 3)["qkv".index(conv[2])]
    if name.endswith("mlp.expert_bias") and file.architecture == "hy_v3":
        return file.tensors[f"blk.{name.split('.')[2]}.exp_probs_b"]
    if name.endswith("attention_sink_bias"):
        return source(name.replace("attention_sink_bias", "sinks"))
    if name.endswith("e_score_correction_bias") and file.architecture in hybrids.CLASSES:
        return source(name)
    return source(name, *shape)


def tensors(file):
    """The whole checkpoint of a file, and its entry of the listing."""
    entry = listing()[file.metadata["general.name"]]
    own = File(file)
    out = {}
    for name, shape in names(entry).items():
        value = array(own, name, shape)
        if value is not None:  # a bias that the file lacks
            out[name] = np.ascontiguousarray(value, np.float32).reshape(shape)
    return out, entry


def tokenizer():
    """tokenizer.json of the tiny models."""
    keys = byte_vocabulary()
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"].tolist()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": t, **flags} for i, t in enumerate(tokens) if types[i] == 3],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(tokens) if types[i] == 1},
            "merges": keys["tokenizer.ggml.merges"],
        },
    }


def safetensors(arrays, kinds=None):
    """The bytes of a safetensors file; `kinds` names the type of arrays that NumPy has none for."""
    numpy_names = {"float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8", "uint32": "U32", "uint16": "BF16"}
    header, at, parts = {}, 0, []
    for name, value in arrays.items():
        dtype = (kinds or {}).get(name) or numpy_names[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        parts.append(value.tobytes())
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def write_folder(folder, arrays, config, *, shards=1, kinds=None, settings=None):
    """Write a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    usual = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(usual | (settings or {})))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(arrays, kinds))
        return folder
    places = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(arrays)}
    for file in set(places.values()):
        chosen = {name: value for name, value in arrays.items() if places[name] == file}
        (folder / file).write_bytes(safetensors(chosen, kinds))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def checkpoint_of(file, folder, **more):
    """Write the checkpoint of an open GGUF file of a tiny model, as it is published."""
    arrays, entry = tensors(file)
    arrays, config = published(file, arrays, {"architectures": [entry["class"]]} | entry["config"])
    return write_folder(folder, arrays, config, **more)


# Families whose class transformers lacks, or has under another name: the class and what its configuration has.
def _deci(file, config):
    blocks = []
    get = lambda key: np.broadcast_to(file.metadata[f"deci.{key}"], config["num_hidden_layers"]).tolist()  # noqa: E731
    for heads, kv, ffn in zip(
        get("attention.head_count"), get("attention.head_count_kv"), get("feed_forward_length"), strict=True
    ):
        attention = {"no_op": not heads, "replace_with_linear": bool(heads and not kv)}
        attention["n_heads_in_group"] = heads // kv if kv else None
        blocks.append({"attention": attention, "ffn": {"no_op": not ffn, "intermediate_size": ffn or None}})
    return {"block_configs": blocks}


def _minicpm(file, config):
    n = config["num_hidden_layers"]
    return {
        "scale_emb": config["embedding_multiplier"],
        "scale_depth": config["residual_multiplier"] * n**0.5,
        "dim_model_base": config["hidden_size"] / config["logits_scaling"],
    }


CLASSES = {
    "exaone": ("ExaoneForCausalLM", None),
    "internlm2": ("InternLM2ForCausalLM", None),
    "xverse": ("XverseForCausalLM", None),
    "pangu-embedded": ("PanguEmbeddedForCausalLM", None),
    "minicpm": ("MiniCPMForCausalLM", _minicpm),
    "deci": ("DeciLMForCausalLM", _deci),
    "orion": ("OrionForCausalLM", None),
    "paddleocr": ("PaddleOCRVLForConditionalGeneration", None),
    "qwen2vl": ("Qwen2_5_VLForConditionalGeneration", None),
    "qwen3vl": ("Qwen3VLForConditionalGeneration", None),
    "qwen3vlmoe": ("Qwen3VLMoeForConditionalGeneration", None),
}
EXAONE = {
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn": "attn.attention",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}
INTERNLM2 = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def published(file, arrays, config):
    """Names and classes as they are on the hub, if transformers has the model only as another."""
    arch = file.metadata["general.architecture"]
    if arch in CLASSES:
        name, more = CLASSES[arch]
        config = config | {"architectures": [name]} | (more(file, config) if more else {})
    if arch == "minicpm":  # transformers computes it as Granite, whose settings its own class lacks
        granites = ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier")
        config = {name: value for name, value in config.items() if name not in granites}
    if arch == "exaone":
        arrays = {_renamed(name, EXAONE): value for name, value in arrays.items()}
    if arch == "internlm2":
        arrays = _internlm2({_renamed(name, INTERNLM2): value for name, value in arrays.items()}, config)
    if alpha := file.metadata.get(f"{arch}.rope.scaling.alpha"):
        config = config | {"rope_parameters": {"rope_type": "dynamic", "alpha": alpha, "rope_theta": 10000.0}}
    if arch == "paddleocr":
        sections = [int(x) for x in file.metadata[f"{arch}.rope.dimension_sections"][:3]]
        config = config | {"rope_parameters": config["rope_parameters"] | {"mrope_section": sections}}
        arrays = arrays | {f"{name}.weight": np.zeros((4, 4), np.float32) for name in ("visual.x", "mlp_AR.linear_1")}
    if arch.startswith("qwen") and arch.endswith(("vl", "vlmoe")):
        sections = [int(x) for x in file.metadata[f"{arch}.rope.dimension_sections"][:3]]
        rope = config["rope_parameters"] | {"mrope_section": sections}
        config = {"architectures": config["architectures"], "text_config": config | {"rope_parameters": rope}}
        arrays = {name.replace("model.", "model.language_model.", 1): value for name, value in arrays.items()}
        arrays["model.visual.patch_embed.proj.weight"] = np.zeros((4, 4), np.float32)
    if arch == "qwen3vlmoe":
        arrays = _fused_experts(arrays, int(file.metadata[f"{arch}.expert_count"]))
    if arch == "deci":
        arrays = _without_parts(arrays, config["block_configs"])
    drafts = int(file.metadata.get(f"{arch}.nextn_predict_layers", 0))
    return (arrays | _mtp(file, arch, config["num_hidden_layers"]), config) if drafts else (arrays, config)


def _renamed(name, table):
    for old, new in table.items():
        name = name.replace(old, new)
    return name


def _internlm2(arrays, config):
    """q, k and v in one matrix, by heads of k and v."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    out = {name: value for name, value in arrays.items() if "self_attn" not in name}
    for i in range(config["num_hidden_layers"]):
        q, k, v = (arrays[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv")
        width = q.shape[1]
        parts = [x.reshape(kv, -1, len(q) // heads, width) for x in (q, k, v)]
        out[f"model.layers.{i}.attention.wqkv.weight"] = np.concatenate(parts, 1).reshape(-1, width)
    return out


def _fused_experts(arrays, count):
    """All experts of a layer in one tensor, the other way round."""
    out = {name: value for name, value in arrays.items() if ".experts." not in name}
    stems = {name.partition("experts.")[0] + "experts" for name in arrays if ".experts." in name}
    for stem in sorted(stems):
        part = {x: np.stack([arrays[f"{stem}.{e}.{x}_proj.weight"].T for e in range(count)]) for x in PARTS.values()}
        out[f"{stem}.gate_up_proj"] = np.concatenate([part["gate"], part["up"]], axis=2)
        out[f"{stem}.down_proj"] = part["down"]
    return out


def _without_parts(arrays, blocks):
    """Layers without attention or network have no tensors for it; a matrix in its place has a name of its own."""
    out = {}
    for name, value in arrays.items():
        layer = re.match(r"model\.layers\.(\d+)\.(.*)", name)
        block = blocks[int(layer[1])] if layer else None
        if block and block["attention"]["no_op"] and ("self_attn" in name or "input_layernorm" in name):
            continue
        if block and block["ffn"]["no_op"] and ("mlp" in name or "post_attention" in name):
            continue
        if block and block["attention"]["replace_with_linear"]:
            name = name.replace("self_attn.o_proj", "self_attn.linear_attn")
        out[name] = value
    return out


def _mtp(file, arch, n):
    """The block that guesses, which transformers does not load."""
    own, out = File(file), {}
    single = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj"}
    if arch == "qwen35":
        single = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
    for gguf, name in single.items():
        if (value := own.tensors.get(f"blk.{n}.nextn.{gguf}.weight")) is not None:
            path = f"mtp.{name}" if arch == "qwen35" else f"model.layers.{n}.{name}"
            out[f"{path}.weight"] = np.float32(value - 1 if arch == "qwen35" and "norm" in gguf else value)
    entry = listing()[file.metadata["general.name"]]
    full = max(i for i, kind in enumerate(entry["layers"]) if _is_like_last(entry["kinds"][kind], own, n, arch))
    pattern = entry["kinds"][entry["layers"][full]]
    for inside, shape in pattern.items():
        count = own.get("expert_count", 0) if "{e}" in inside else 1
        for e in range(int(count)):
            name = inside.replace("{e}", str(e))
            value = array(own, f"model.layers.{n}.{name}", shape)
            stem = f"mtp.layers.0.{name}" if arch == "qwen35" else f"model.layers.{n}.{name}"
            out[stem] = np.ascontiguousarray(value, np.float32).reshape(shape)
    return out


def _is_like_last(kind, file, n, arch):
    return arch != "qwen35" or "self_attn.q_proj.weight" in kind
