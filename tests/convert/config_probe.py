"""Changes single settings of config.json in checkpoints of tiny models, and compares what transformers computes.

A changed setting must be rejected, or leave transformers' logits alone, or give a file with transformers' new logits.
`python -m tests.convert.config_probe [NAME...]` prints what is wrong, in an environment with torch, transformers and
the `gguf` package.
"""

import copy
import json
import re
import sys
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.cases.families import FAMILIES
from tests.cases.tiny import write_tiny
from tests.convert.folders import listing, tokenizer
from woolly import LLM
from woolly.convert import choose_types, conversion_plan, open_checkpoint, plan_conversion, write_draft
from woolly.errors import WoollyError

IDS = np.random.RandomState(0).randint(3, 300, 40).tolist()
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2")
# Settings of training, texts and files; and the number of things, whose tensors would be others.
SKIPPED = {
    *("architectures", "model_type", "dtype", "transformers_version", "vocab_size", "num_hidden_layers", "hidden_size"),
    # An initialization that transformers repeats for weights that it has loaded.
    "rescale_prenorm_residual",
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range", "id2label", "label2id"),
}
# Largest relative error of logits that are equal.
EQUAL = 2e-4


def changes_of(config):
    """Yield each name with a changed value; a name below another is joined to it by a dot."""
    for name, value in config.items():
        if name in SKIPPED or name.startswith(("output_", "vision_", "audio_")):
            continue
        if isinstance(value, dict):
            for inner, own in changes_of(value):
                yield f"{name}.{inner}", own
        else:
            yield from ((name, changed) for changed in _others(name, value))


def _others(name, value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        is_feature = re.search("cap|window|scal|multiplier|limit|clip|length", name)
        return ([value * 2, None] if is_feature else [value * 2]) if value else [1]
    if isinstance(value, str):
        return [next(one for one in ACTIVATIONS if one != value), "relu"] if value in ACTIVATIONS else []
    if isinstance(value, list) and value and len(set(map(str, value))) > 1:
        return [value[::-1]]
    return []


def with_change(config, name, value):
    out = copy.deepcopy(config)
    inner, *path = out, *name.split(".")
    for one in path[:-1]:
        inner = inner[one]
    inner[path[-1]] = value
    return out


@contextmanager
def without_tokens():
    """Leave the comparison of tokens to other tests."""
    usual = conversion_plan.verify_tokenizer
    conversion_plan.verify_tokenizer = lambda tokens, about: (
        tokens.keys | {"tokenizer.ggml.pre": tokens.splits[0]},
        0,
    )
    try:
        yield
    finally:
        conversion_plan.verify_tokenizer = usual


def converted(folder, target):
    """Write the file of a folder; None if the conversion is rejected."""
    try:
        plan = plan_conversion(open_checkpoint(folder))
        write_draft(plan, choose_types(plan, None), target, threads=1)
    except WoollyError as error:
        return str(error)
    return None


def logits_of_file(path):
    with LLM(path, backend="reference", threads=1) as llm:
        return llm.logits(IDS)


def logits_of_folder(folder):
    """Return transformers' logits; None if it cannot load or run the folder as it is."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = json.loads((folder / "config.json").read_text())
    try:
        kind = getattr(transformers, config["architectures"][0])
        model, info = kind.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
        with torch.no_grad():
            logits = model.eval()(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    except Exception:  # whatever its code raises for a value that makes no sense
        return None
    unfair = any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return None if unfair or not np.isfinite(logits).all() else logits


def distance(one, other):
    if one.shape != other.shape:
        return 1.0
    return float((np.linalg.norm(one - other, axis=1) / np.linalg.norm(other, axis=1)).max())


def make_folder(name, folder):
    """Save the tiny model as transformers does."""
    from tests.goldens.make import File, build

    model = build(File(write_tiny(FAMILIES[name], folder / "tiny.gguf")))
    model.save_pretrained(folder / "model")
    # The goldens give every class the settings of all; its own are what it has by default.
    known = type(model.config)().to_dict().keys() | {"architectures", "head_dim"}
    config = json.loads((folder / "model" / "config.json").read_text())
    own = {key: value for key, value in config.items() if key in known}
    (folder / "model" / "config.json").write_text(json.dumps(own))
    write_tokenizer(folder / "model")
    return folder / "model"


def write_tokenizer(folder):
    """Add the tokenizer of the tiny models."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def probe_folder(model, scratch, counts):
    """Yield what is wrong with the conversion of a checkpoint, and of it with each changed setting."""
    config = json.loads((model / "config.json").read_text())
    with warnings.catch_warnings(), without_tokens():
        warnings.simplefilter("ignore")
        if reason := converted(model, scratch / "plain.gguf"):
            yield f"not converted: {reason}"
            return
        plain, usual = (scratch / "plain.gguf").read_bytes(), logits_of_folder(model)
        if usual is None:
            yield "transformers cannot run it"
            return
        if (off := distance(logits_of_file(scratch / "plain.gguf"), usual)) > EQUAL:
            yield f"unchanged: off by {off:.2g}"
        for name, value in changes_of(config):
            (model / "config.json").write_text(json.dumps(with_change(config, name, value)))
            if converted(model, scratch / "out.gguf"):
                counts["rejected"] += 1
                continue
            wanted = logits_of_folder(model)
            if wanted is None:
                counts["unfair"] += 1
                continue
            if (scratch / "out.gguf").read_bytes() == plain:
                counts["same file"] += 1
                if (off := distance(wanted, usual)) > EQUAL:
                    yield f"{name} = {value!r}: the same file, but transformers' logits move by {off:.2g}"
                continue
            counts["other file"] += 1
            if (off := distance(logits_of_file(scratch / "out.gguf"), wanted)) > EQUAL:
                yield f"{name} = {value!r}: the logits are off by {off:.2g}"


def probe(name, counts):
    """Return what is wrong with a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = make_folder(name, Path(folder))
        except (AttributeError, ImportError, TypeError) as error:
            return [f"not built: {error}"]
        return list(probe_folder(model, Path(folder), counts))


def main():
    from collections import Counter

    for name in sys.argv[1:] or listing():
        counts = Counter()
        found = probe(name, counts)
        print(name, dict(counts), flush=True)
        for one in found:
            print("   ", one[:300], flush=True)


if __name__ == "__main__":
    main()
