"""Writes tests/goldens/checkpoints.json: what transformers calls the tensors of each tiny model when it saves it.

    python -m tests.goldens.make_checkpoints       (from the project's root, in the environment of make.py)

Each entry has the class, the configuration, the tensors outside of layers, the kinds of layers and the kind of each.
"""

import json
import re
import tempfile
from pathlib import Path

from safetensors import safe_open

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.goldens.make import HERE, File, build

# What says nothing about the model.
DROPPED = {
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "transformers_version",
    "initializer_range",
    "use_cache",
    "attention_dropout",
    "id2label",
    "label2id",
    "return_dict",
    "output_hidden_states",
    "problem_type",
    "hidden_dropout",
    "time_step_limit",
    "router_aux_loss_coef",
    "chunk_size_feed_forward",
}


def shapes(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            found |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return found


def entry(folder):
    """One model: names of experts are written once, and layers that are alike share a kind."""
    config, top, layers, prefix = json.loads((folder / "config.json").read_text()), {}, {}, ""
    for name, shape in shapes(folder).items():
        found = re.fullmatch(r"(.*(?:layers|blocks|h)\.)(\d+)\.(.*)", name)
        if not found:
            top[name] = shape
            continue
        prefix = found[1]
        layers.setdefault(int(found[2]), {})[re.sub(r"experts\.(\d+)\.", "experts.{e}.", found[3])] = shape
    kinds = []
    for i in sorted(layers):
        if layers[i] not in kinds:
            kinds.append(layers[i])
    return {
        "class": config["architectures"][0],
        "config": {key: value for key, value in config.items() if key not in DROPPED and value is not None},
        "top": top,
        "prefix": prefix,
        "kinds": kinds,
        "layers": [kinds.index(layers[i]) for i in sorted(layers)],
    }


def main():
    entries = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, tiny in sorted(FAMILIES.items()):
            try:
                model = build(File(write_tiny(tiny, Path(folder, f"{name}.gguf"))))
                model.save_pretrained(Path(folder, name))
            except (AttributeError, ImportError) as error:  # of models that transformers lacks
                print(f"{name}: {error}")
                continue
            entries[name] = entry(Path(folder, name))
    lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in entries.items()]
    (HERE / "checkpoints.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
