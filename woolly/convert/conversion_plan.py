"""ConversionPlan: layout of a checkpoint's GGUF file, made before reading weights."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from woolly.convert.checkpoint import Checkpoint
from woolly.convert.config_ledger import check_settings
from woolly.convert.families import FAMILIES, find_family
from woolly.convert.family import CheckpointFamily
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.pooling import dense_sources, pooling_keys
from woolly.convert.quantized_checkpoint import sources_of
from woolly.convert.rope import rope_tensors
from woolly.convert.source import Computed
from woolly.convert.tensors import Fragment, Target, map_tensors, output_of_table
from woolly.convert.vocabulary import read_tokens, verify_tokenizer
from woolly.errors import ModelError, PlanError, UnsupportedError
from woolly.gguf import MemoryMap, Tensor
from woolly.models import trace
from woolly.quant import GGMLType
from woolly.quantize import is_kept


@dataclass(frozen=True)
class ConversionPlan:
    """Metadata and the source of each tensor. The model has been traced, so it is known to run."""

    path: Path  # path of the checkpoint
    metadata: Mapping[str, Any]
    targets: Mapping[str, Target]
    tensors: Mapping[str, Tensor]  # with the checkpoint's types
    left_out: tuple[str, ...]
    n_lines: int  # number of lines for which both tokenizers agree; 0: there is no original tokenizer


def plan_conversion(
    checkpoint: Checkpoint, about: Mapping[str, Any] | None = None, *, ignored: Collection[str] = ()
) -> ConversionPlan:
    """Plan the GGUF file of a checkpoint. Raise WoollyError if the checkpoint cannot be converted.

    `about` has additional `general.*` values, and `ignored` lists settings of config.json to drop. The converted
    tokenizer is compared with the original, and the model is traced.
    """
    family, config = family_of(checkpoint.raw, checkpoint.folder)
    try:
        return _make(checkpoint, family, config, about or {}, ignored)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"{checkpoint.folder}: config.json and the tensors do not match a {family.architecture} model"
            f" ({type(error).__name__}: {str(error)[:120]})"
        ) from error


def _make(
    checkpoint: Checkpoint,
    family: CheckpointFamily,
    config: Hyperparameters,
    about: Mapping[str, Any],
    ignored: Collection[str],
) -> ConversionPlan:
    name, keys = family.name_for(config), family.all_keys(config)
    layout = map_tensors([*sources_of(checkpoint), *dense_sources(checkpoint)], family, config, keys)
    if layout.n_drafts:
        keys |= {"block_count": keys["block_count"] + layout.n_drafts, "nextn_predict_layers": layout.n_drafts}
        keys |= _longer(keys, layout.n_drafts)
    targets = {target.name: target for target in layout.targets}
    if "token_embd.weight" not in targets:
        raise ModelError(f"{checkpoint.folder}: the checkpoint has no token embedding, so it is not a language model")
    if "output.weight" not in targets and family.reads_text:
        output = output_of_table(targets["token_embd.weight"], family, config)
        targets |= {} if output is None else {output.name: output}
    keys["vocab_size"] = targets["token_embd.weight"].shape[0]
    keys |= pooling_keys(checkpoint)
    computed = rope_tensors(config, keys) if "rope.dimension_count" in keys else {}
    computed |= family.computed(config, keys)
    check_settings(config, family.settings, keys, ignored)
    for tensor, values in computed.items():
        source = Computed(tensor, values.shape, GGMLType.F32, lambda values=values: values)  # type: ignore[misc]
        targets[tensor] = Target(tensor, (Fragment(source),))
    metadata = {"general.architecture": name, "general.type": "model", "general.name": _name(checkpoint), **about}
    metadata |= {**{f"{name}.{key}": value for key, value in keys.items()}, **layout.values}
    metadata |= family.shared(config)
    tokens = read_tokens(checkpoint, keys["vocab_size"])
    tokens = tokens if family.reads_text else replace(tokens, source=None)
    vocabulary, n_lines = verify_tokenizer(tokens, metadata)
    metadata |= vocabulary
    if "token_types.weight" in targets:
        metadata["tokenizer.ggml.token_type_count"] = targets["token_types.weight"].shape[0]
    nothing = MemoryMap(str(checkpoint.folder), np.empty(0, np.float32))
    tensors = {one.name: Tensor(one.name, _type(one), one.shape, 0, nothing) for one in targets.values()}
    plan = ConversionPlan(checkpoint.folder, metadata, targets, tensors, layout.left_out, n_lines)
    _check_model(plan, name)
    return plan


def _check_model(plan: ConversionPlan, architecture: str) -> None:
    """Trace the model. Raise ModelError if config.json and the tensors do not match."""
    try:
        trace(plan)
    except PlanError as error:
        reason = re.sub(r" \(\w+\.py:\d+\)$", "", str(error))  # the line of the model's Python file
        raise ModelError(
            f"{plan.path}: config.json does not match the tensors of a {architecture} model: {reason}"
        ) from error


def _longer(keys: Mapping[str, Any], n: int) -> dict[str, Any]:
    """Extend per-layer lists by one item per draft block."""
    lists = {key: value for key, value in keys.items() if isinstance(value, list) and "section" not in key}
    return {key: [*value, *[value[-1]] * n] for key, value in lists.items()}


def _type(target: Target) -> GGMLType:
    """Return the lossless type of a tensor. Norms and vectors are always F32."""
    types = {piece.source.type for piece in target.pieces}
    if any(type.block_size > 1 for type in types):
        return _packed_type(target, types)
    is_matrix = len([n for n in target.shape if n > 1]) > 1 and target.name.endswith("weight")
    if not is_matrix or "norm" in target.name or is_kept(target.name) or any(p.computes for p in target.pieces):
        return GGMLType.F32
    return types.pop() if len(types) == 1 else GGMLType.F32


def _packed_type(target: Target, types: set[GGMLType]) -> GGMLType:
    for piece in target.pieces:
        if any(op.floats or not op.rows for op in piece.ops):
            raise UnsupportedError(
                f"tensor {piece.source.name!r:.90} is quantized, and its columns must change their order to become"
                f" {target.name}, which would round it again; use a checkpoint in BF16, F16 or F32"
            )
    if len(types) != 1:
        names = ", ".join(sorted(type.name for type in types))
        raise UnsupportedError(f"the tensors of {target.name} have different types ({names})")
    return types.pop()


def _name(checkpoint: Checkpoint) -> str:
    given = checkpoint.raw.get("_name_or_path")
    name = given if isinstance(given, str) and given else checkpoint.folder.resolve().name
    return name.rstrip("/").rpartition("/")[2] or "model"


def family_of(raw: Mapping[str, Any], folder: Path) -> tuple[CheckpointFamily, Hyperparameters]:
    """Return the family and hyperparameters of a config.json. Raise UnsupportedError for an unknown class."""
    names = raw.get("architectures")
    classes = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    family = find_family(classes)
    if family is not None:
        return family, Hyperparameters(raw, str(folder / "config.json")).with_defaults(family.defaults)
    if not classes:
        raise UnsupportedError(f"{folder}: config.json has no architectures, so the model class is unknown")
    if classes[0].startswith("Whisper"):
        raise UnsupportedError(
            f"{folder}: Whisper checkpoints cannot be converted; use a whisper.cpp file (ggml-*.bin): `woolly pull"
            " whisper:base`"
        )
    known = sorted({name for family in FAMILIES.values() for name in family.classes.split()})
    near = difflib.get_close_matches(classes[0], known, n=3, cutoff=0.6)
    hint = f"; similar supported classes: {', '.join(near)}" if near else ""
    raise UnsupportedError(f"{folder}: the class {classes[0]!r:.90} cannot be converted yet{hint}")
