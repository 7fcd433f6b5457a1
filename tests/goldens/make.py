"""Makes the golden logits with an independent f32 engine: torch and transformers on dequantized weights.

    pip install torch transformers gguf            (in an environment of its own, with woolly)
    python -m tests.goldens.make SmolLM2-135M-Instruct.Q4_1.gguf      (from the project's root)

Files are read with the `gguf` package, so that neither Woolly's reader nor its dequantization takes part.
Each golden holds token ids and, per position, the argmax, the norm of the logit vector and the logits of every
`stride`-th id.
"""

import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from tests.cases.tiny import LLAMA3, TINY, write_tiny

HERE = Path(__file__).parent
TEXT = (
    "Wool is the textile fibre obtained from sheep and other animals. It was traded before any coin was struck,"
    " and in 1275 the first customs duty of England was laid on it: 6s 8d a sack. A spinner of that time made"
    " perhaps 90 metres of yarn in an hour; a mill of 1850 made as much in seconds."
)


class File:
    """A GGUF file as the `gguf` package sees it."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self.architecture = self.fields["general.architecture"]

    def get(self, key, default=None):
        return self.fields.get(f"{self.architecture}.{key}", default)


def rope_parameters(file):
    parameters = {"rope_type": "default", "rope_theta": float(file.get("rope.freq_base", 10000.0))}
    kind = file.get("rope.scaling.type")
    if "rope_freqs.weight" in file.tensors:
        parameters |= {"rope_type": "llama3", **LLAMA3}
    elif kind == "linear":
        parameters |= {"rope_type": "linear", "factor": float(file.get("rope.scaling.factor"))}
    elif kind == "yarn":
        parameters |= {
            "rope_type": "yarn",
            "factor": float(file.get("rope.scaling.factor")),
            "original_max_position_embeddings": int(file.get("rope.scaling.original_context_length")),
        }
    return parameters


def build(file):
    """The same model in transformers, in f32."""
    names = {"llama": "Llama", "granite": "Granite", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    name = names[file.architecture]
    heads, kv_heads = int(file.get("attention.head_count")), int(file.get("attention.head_count_kv"))
    width = int(file.get("embedding_length"))
    n_vocab = len(file.tensors["token_embd.weight"])
    options = {
        "vocab_size": n_vocab,
        "hidden_size": width,
        "intermediate_size": int(file.get("feed_forward_length")),
        "num_hidden_layers": int(file.get("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": int(file.get("attention.key_length", width // heads)),
        "max_position_embeddings": int(file.get("context_length")),
        "rms_norm_eps": float(file.get("attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope_parameters(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attn_implementation": "eager",
    }
    if file.architecture in ("llama", "granite"):
        options["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if file.architecture == "granite":
        options |= {
            "embedding_multiplier": float(file.get("embedding_scale")),
            "residual_multiplier": float(file.get("residual_scale")),
            "attention_multiplier": float(file.get("attention.scale")),
            "logits_scaling": float(file.get("logit_scale")),
        }
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        load(model, file, heads, kv_heads)
    return model


def load(model, file, heads, kv_heads):
    turned = file.architecture in ("llama", "granite")  # these files keep rotary pairs side by side

    def halves(array, n):
        if not turned:
            return array
        shape = (n, array.shape[0] // n // 2, 2, *array.shape[1:])
        return array.reshape(shape).swapaxes(1, 2).reshape(array.shape)

    left = set(file.tensors) - {"rope_freqs.weight"}

    def put(parameter, name, n=None):
        array = file.tensors[name]
        left.discard(name)
        array = array if n is None else halves(array, n)
        assert tuple(parameter.shape) == array.shape, (name, parameter.shape, array.shape)
        parameter.copy_(torch.from_numpy(np.array(array, np.float32)))

    put(model.model.embed_tokens.weight, "token_embd.weight")
    put(model.model.norm.weight, "output_norm.weight")
    if "output.weight" in file.tensors:
        put(model.lm_head.weight, "output.weight")
    for i, layer in enumerate(model.model.layers):
        block = f"blk.{i}."
        put(layer.input_layernorm.weight, block + "attn_norm.weight")
        put(layer.post_attention_layernorm.weight, block + "ffn_norm.weight")
        for x, n in (("q", heads), ("k", kv_heads), ("v", None)):
            projection = getattr(layer.self_attn, f"{x}_proj")
            put(projection.weight, f"{block}attn_{x}.weight", n)
            if projection.bias is not None:
                put(projection.bias, f"{block}attn_{x}.bias", n)
            if f"{block}attn_{x}_norm.weight" in file.tensors:
                put(getattr(layer.self_attn, f"{x}_norm").weight, f"{block}attn_{x}_norm.weight")
        put(layer.self_attn.o_proj.weight, block + "attn_output.weight")
        if layer.self_attn.o_proj.bias is not None:
            layer.self_attn.o_proj.bias.zero_()
        for x in ("gate", "up", "down"):
            put(getattr(layer.mlp, f"{x}_proj").weight, f"{block}ffn_{x}.weight")
    assert not left, f"not loaded: {sorted(left)}"


def logits(path, ids):
    with torch.no_grad():
        return build(File(path))(torch.tensor([ids])).logits[0].numpy()


def save(name, ids, rows, stride):
    np.savez_compressed(
        HERE / f"{name}.npz",
        ids=np.asarray(ids, np.int32),
        argmax=rows.argmax(axis=1).astype(np.int32),
        norm=np.linalg.norm(rows.astype(np.float64), axis=1),
        logits=rows[:, ::stride].astype(np.float32),
        stride=np.int32(stride),
    )
    print(f"{name}: {rows.shape[0]} positions, {(HERE / f'{name}.npz').stat().st_size // 1024} KiB")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for tiny in TINY.values():
            path = write_tiny(tiny, Path(folder, f"{tiny.name}.gguf"))
            ids = np.random.RandomState(7).randint(0, 264, 48).tolist()
            save(f"tiny-{tiny.name}", ids, logits(path, ids), 4)
    if len(sys.argv) > 1:
        from woolly import Tokenizer

        ids = Tokenizer.from_gguf(sys.argv[1]).encode(TEXT)[:64]
        save("smollm2", ids, logits(sys.argv[1], ids), 96)


if __name__ == "__main__":
    main()
