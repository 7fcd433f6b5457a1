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

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.goldens import classes, cogvlm, hybrids, loops, newest, older, rwkv7, skeletons

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
        self.tensors = {
            t.name: t.data if t.data.dtype == np.int32 else gguf.quants.dequantize(t.data, t.tensor_type)
            for t in reader.tensors
        }
        self.architecture = self.fields["general.architecture"]

    def get(self, key, default=None):
        return self.fields.get(f"{self.architecture}.{key}", default)


def kind_of(file):
    """The module that knows the family."""
    return next((kind for kind in (hybrids, newest, older) if file.architecture in kind.CLASSES), classes)


def build(file):
    """Build the model in transformers, in f32."""
    kind = kind_of(file)
    name = kind.class_name(file)
    texts = (
        "Dots3Note",
        "Gemma3",
        "Gemma3n",
        "Gemma4",
        "Llama4",
        "MiniMaxM3VL",
        "Qwen3_5",
        "Qwen3_5Moe",
        "Qwen4Exp",
        *WithHead.NAMES,
    )
    config_name = f"{name}TextConfig" if name in texts else f"{name}Config"
    config = getattr(transformers, config_name)(**kind.options(file))
    causal = WithHead if name in WithHead.NAMES else getattr(transformers, f"{name}ForCausalLM", None)
    model = (causal or getattr(transformers, f"{name}LMHeadModel"))(config).float().eval()
    if file.architecture == "deci":
        for i, n in enumerate(np.atleast_1d(file.get("attention.head_count_kv"))):
            if n == 0 and f"blk.{i}.attn_output.weight" in file.tensors:
                model.model.layers[i].self_attn = Alone(config.hidden_size)
    with torch.no_grad():
        load(model, file)
    return model


class WithHead(torch.nn.Module):
    """A text model that transformers has inside one that sees images."""

    NAMES = ("DeepseekOcr2", "MuseGlimmer", "Step3p7")

    def __init__(self, config):
        super().__init__()
        self.config = config
        step = transformers.models.step3p7.modeling_step3p7.Step3p7TextModel
        name = type(config).__name__.replace("Config", "Model")
        self.model = getattr(transformers, name, step)(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids):
        hidden = self.model(input_ids=ids).last_hidden_state
        logits = self.lm_head(hidden) * getattr(self.config, "output_multiplier", 1.0)
        if bound := getattr(self.config, "final_logit_softcapping", None):
            logits = bound * torch.tanh(logits / bound)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


class Alone(torch.nn.Module):
    """A matrix in place of attention."""

    def __init__(self, width):
        super().__init__()
        self.o_proj = torch.nn.Linear(width, width, bias=False)

    def forward(self, hidden_states, **others):
        return self.o_proj(hidden_states), None


def load(model, file):
    """Every tensor of the file goes into a parameter. Parts that a layer does not have give zeros."""
    drafts = tuple(f"blk.{i}." for i in range(model.config.num_hidden_layers, int(file.get("block_count"))))
    left = {name for name in file.tensors if not name.startswith((*drafts, "rope_"))}
    if file.architecture == "gemma3n":  # matrices of layers that look at K and V of others
        config = model.config
        shared = range(config.num_hidden_layers - config.num_kv_shared_layers, config.num_hidden_layers)
        left -= {f"blk.{i}.attn_{x}.weight" for i in shared for x in ("k", "k_norm", "v")}
    if file.architecture == "muse-glimmer":  # what q and k are multiplied by, which is a number in the configuration
        left -= {name for name in left if name.endswith(("attn_q_norm.weight", "attn_k_norm.weight"))}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and "output.weight" not in file.tensors:
            continue
        if name.endswith(("slope_rate", "_decay")) or newest.is_constant(file, name, parameter):  # MiniMax's, or known
            continue
        if "act_fn" in name:
            parameter.fill_(float(file.fields[f"xielu.{name.rpartition('.')[2]}"][int(name.split(".")[2])]))
            continue
        array, names = kind_of(file).source(file, name, parameter)
        left -= set(names)
        if array is None:
            assert file.architecture == "deci" or name.endswith("bias"), name
            parameter.zero_() if "layernorm" not in name else parameter.fill_(1)
            continue
        assert tuple(parameter.shape) == array.shape, (name, parameter.shape, array.shape)
        parameter.copy_(torch.from_numpy(np.array(array, np.float32)))
    assert not left, f"not loaded: {sorted(left)}"


def logits(path, ids):
    file = File(path)
    if file.architecture in ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"):
        return rwkv7.logits(file, ids)
    if file.architecture == "cogvlm":
        return cogvlm.logits(file, ids)
    for kind in (loops, skeletons):
        if kind.has(file):
            return kind.logits(file, ids)
    with torch.no_grad():
        return build(file)(torch.tensor([ids])).logits[0].numpy()


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
        for tiny in FAMILIES.values():
            if (HERE / f"tiny-{tiny.name}.npz").exists():  # delete a golden to make it anew
                continue
            path = write_tiny(tiny, Path(folder, f"{tiny.name}.gguf"))
            ids = np.random.RandomState(7).randint(0, 264, 48).tolist()
            save(f"tiny-{tiny.name}", ids, logits(path, ids), 5)
    if len(sys.argv) > 1:
        from woolly import Tokenizer

        ids = Tokenizer.from_gguf(sys.argv[1]).encode(TEXT)[:64]
        save("smollm2", ids, logits(sys.argv[1], ids), 96)


if __name__ == "__main__":
    main()
