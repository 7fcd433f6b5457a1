"""Draft files: an MTP block (`mtp-NAME.gguf`) or a draft head in a separate file."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from woolly.errors import GGUFError, ModelError, PlanError, RequestError, UnsupportedError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import is_block, is_head, trace_draft, trace_head
from woolly.quant import GGMLType

if TYPE_CHECKING:
    from woolly.plan import Plan


def is_draft_file(path: Path) -> bool:
    """Return True if a file has an MTP block or a draft head for another model."""
    with open_gguf(path) as file:
        return is_block(file) or is_head(file)


def has_block(path: Path) -> bool:
    """Return True if a model file has an MTP block."""
    with open_gguf(path) as file:
        return any(name.endswith(".nextn.eh_proj.weight") for name in file.tensors)


def open_draft_file(file: GGUFFile, path: Path | None, wanted: bool | None) -> GGUFFile | None:
    """Open the draft file of a model. A mismatch raises an error if the draft is `wanted`, and is otherwise logged."""
    if path is None:
        return None
    other: GGUFFile | None = None
    try:
        other = open_gguf(path)
        _check_fit(file, other)
        return other
    except (
        GGUFError,
        ModelError,
        OSError,
        TypeError,
        ValueError,
    ) as error:  # the last two: invalid metadata
        if other is not None:
            other.close()
        if wanted and isinstance(error, (TypeError, ValueError)):
            raise ModelError(f"{path.name} has invalid metadata: {error}") from error
        if wanted:
            raise
        warnings.warn(f"speculation is off: {path.name} cannot be used: {error}", stacklevel=4)
        return None


def with_draft(file: GGUFFile, plan: Plan, ctx: int | None, wanted: bool | None, other: GGUFFile | None = None) -> Plan:
    """Return the plan with the draft of the model file or of the draft file `other`, as in `load_model`.

    A broken draft raises an error if it is `wanted`, otherwise it causes a warning.
    """
    if wanted is False:
        return plan
    if other is not None and is_head(other):
        try:
            traced = trace_head(file, plan, other, ctx)
            draft_token_map(other, traced)
            return traced
        except (ModelError, PlanError, UnsupportedError) as error:
            if wanted:
                raise
            warnings.warn(f"speculation is off: {other.path.name} cannot be used: {error}", stacklevel=4)
            return plan
    source = file if other is None else other
    try:
        draft = trace_draft(file, plan, ctx, other)
        if draft is not None and draft.width != plan.width:
            raise ModelError(
                f"{source.path}: the MTP block predicts {draft.width} tokens, but the model has {plan.width}"
            )
    except (ModelError, PlanError, UnsupportedError) as error:
        if wanted:
            raise
        if not isinstance(error, UnsupportedError):
            warnings.warn(f"speculation is off: the MTP block of the file cannot be used: {error}", stacklevel=4)
        return plan
    if wanted and draft is None:
        raise RequestError(
            f"speculation is 'mtp', but {source.path} has no MTP block (nextn); use another mode, or put the model's"
            " mtp-NAME.gguf or dflash-NAME.gguf next to it",
            field="speculation",
        )
    if draft is None and other is not None and plan.result == "logits":
        warnings.warn(
            f"speculation is off: {other.path.name} has no MTP block for this model",
            stacklevel=4,
        )
    return replace(plan, draft=draft)


def describe_draft(file: GGUFFile, plan: Plan, ctx: int | None, wanted: bool | None, path: Path | None = None) -> Plan:
    """Return the plan of `with_draft` for the draft file at `path`, and close the file."""
    other = open_draft_file(file, path, wanted)
    try:
        return with_draft(file, plan, ctx, wanted, other)
    finally:
        if other is not None:
            other.close()


def draft_token_map(other: GGUFFile | None, plan: Plan) -> npt.NDArray[np.int64] | None:
    """Return the model token of each draft token (`d2t`), or None if they are identical.

    Raise ModelError for an invalid table.
    """
    if plan.draft is None:
        return None
    table = None if other is None or plan.draft.borrows else other.tensors.get("d2t")
    if other is None or table is None:
        if plan.draft.width != plan.width:
            raise ModelError(
                f"the draft predicts {plan.draft.width} of {plan.width} tokens, but has no d2t table to map them"
            )
        return None
    if table.type is not GGMLType.I64 or table.shape != (plan.draft.width,):
        raise ModelError(
            f"{other.path}: d2t is {table.type.name} of shape {table.shape}; expected I64 of shape"
            f" ({plan.draft.width},)"
        )
    ids: npt.NDArray[np.int64] = table.data.reshape(-1).view(np.int64).copy()
    if ids.min() < 0 or ids.max() >= plan.width:
        raise ModelError(f"{other.path}: d2t has token ids outside the model's vocabulary of {plan.width}")
    return ids


def _check_fit(file: GGUFFile, other: GGUFFile) -> None:
    """Raise ModelError unless architecture, width, layers and vocabulary of a draft file match the model."""
    if not (is_block(other) or is_head(other)):
        raise ModelError(
            f"{other.path.name} has neither an MTP block nor a draft head for {file.path.name}; to use a complete"
            " draft model, pass its path as the draft"
        )
    own, its = _traits(file), _traits(other)
    if is_head(other):
        name = other.metadata["general.architecture"]
        widths = (other.metadata.get(f"{name}.{key}", 0) for key in ("target_hidden_size", "embedding_length_out"))
        its = {"width": max(widths) or its["width"], "tokens": its["tokens"]}
    for what, mine in own.items():
        if its.get(what, mine) != mine:
            raise ModelError(
                f"{other.path.name} is for a model with {what} {its[what]}, but {file.path.name} has {mine}:"
                " they belong to different models"
            )
    tokens = [one.metadata.get("tokenizer.ggml.tokens") for one in (file, other)]
    if None not in tokens and tokens[0] != tokens[1]:
        raise ModelError(
            f"{other.path.name} and {file.path.name} have different vocabularies: they belong to different models"
        )


def _traits(file: GGUFFile) -> dict[str, Any]:
    name = file.metadata.get("general.architecture")
    keys = (file.metadata.get(f"{name}.{key}", 0) for key in ("embedding_length", "block_count"))
    width, n_blocks = keys
    table = file.tensors.get("token_embd.weight")
    return {
        "architecture": name,
        "width": width,
        "layers": n_blocks - file.metadata.get(f"{name}.nextn_predict_layers", 0),
        "tokens": len(file.metadata.get("tokenizer.ggml.tokens", ())) if table is None else table.shape[0],
    }
