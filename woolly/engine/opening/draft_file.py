"""Draft files: the block that guesses a model's tokens, in a file of its own (`mtp-NAME.gguf`)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from woolly.errors import GGUFError, ModelError, PlanError, RequestError, UnsupportedError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import is_block, trace_draft
from woolly.plan import Plan

__all__ = ["describe_draft", "has_block", "is_draft_file", "load_draft", "open_draft_file"]


def is_draft_file(path: Path) -> bool:
    """Returns whether a file holds nothing but a block that guesses tokens for the model of another file."""
    with open_gguf(path) as file:
        return is_block(file)


def has_block(path: Path) -> bool:
    """Returns whether a model's own file has a block that guesses tokens."""
    with open_gguf(path) as file:
        return any(name.endswith(".nextn.eh_proj.weight") for name in file.tensors)


def open_draft_file(file: GGUFFile, path: Path | None, wanted: bool | None) -> GGUFFile | None:
    """Opens the draft file of a model. One that does not fit is an error if it is `wanted`, else a warning."""
    if path is None:
        return None
    other: GGUFFile | None = None
    try:
        other = open_gguf(path)
        _check_fit(file, other)
        return other
    except (GGUFError, ModelError, OSError) as error:
        if other is not None:
            other.close()
        if wanted:
            raise
        warnings.warn(f"speculation is off, because {path.name} cannot be used: {error}", stacklevel=4)
        return None


def load_draft(
    file: GGUFFile, plan: Plan, ctx: int | None, wanted: bool | None, other: GGUFFile | None = None
) -> Plan | None:
    """The draft of the file, or of its draft file `other`, as `load_model` takes it.

    One that nobody asked for and is broken gives a warning.
    """
    if wanted is False:
        return None
    source = file if other is None else other
    try:
        draft = trace_draft(file, plan, ctx, other)
        if draft is not None and draft.width != plan.width:
            raise ModelError(f"{source.path}: the block that guesses tokens knows {draft.width} of {plan.width}")
    except (ModelError, PlanError, UnsupportedError) as error:
        if wanted:
            raise
        if not isinstance(error, UnsupportedError):
            warnings.warn(f"speculation is off, because the file's own block cannot be used: {error}", stacklevel=4)
        return None
    if wanted and draft is None:
        raise RequestError(
            f"speculation is 'mtp', but {source.path} has no block that guesses tokens (nextn), and no file"
            " mtp-NAME.gguf is beside it",
            field="speculation",
        )
    return draft


def describe_draft(
    file: GGUFFile, plan: Plan, ctx: int | None, wanted: bool | None, path: Path | None = None
) -> Plan | None:
    """As `load_draft`, of a draft file by its path, which is closed again."""
    other = open_draft_file(file, path, wanted)
    try:
        return load_draft(file, plan, ctx, wanted, other)
    finally:
        if other is not None:
            other.close()


def _check_fit(file: GGUFFile, other: GGUFFile) -> None:
    """ModelError with both names unless a block was made for the model: its kind, width, layers and vocabulary."""
    own, its = _traits(file), _traits(other)
    for what, mine in own.items():
        if its[what] != mine:
            raise ModelError(
                f"{other.path.name} guesses for a model of {what} {its[what]}, but {file.path.name} has {mine}:"
                " they belong to different models"
            )
    tokens = [one.metadata.get("tokenizer.ggml.tokens") for one in (file, other)]
    if None not in tokens and tokens[0] != tokens[1]:
        raise ModelError(
            f"{other.path.name} and {file.path.name} name tokens differently: they belong to different models"
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
