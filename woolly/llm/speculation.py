"""Draft methods by name: MTP, prompt lookup, draft models and heads."""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from woolly.engine import context_limit, drafts, has_block, is_draft_file, load_model
from woolly.errors import RequestError, StoreError
from woolly.llm.model_options import ModelOptions
from woolly.store import find_draft, resolve

if TYPE_CHECKING:
    from woolly.engine import Engine, LoadedModel
    from woolly.runtime import Options

log = logging.getLogger("woolly.llm")

_NAMES = ("auto", "mtp", "mtp_lookup", "none", "prompt_lookup")


class Opened(Protocol):
    """Attributes of an open LLM that a draft needs."""

    path: Path

    @property
    def engine(self) -> Engine:
        """Raises if it was closed."""


def guess_source(speculation: str | os.PathLike[str] | Opened | None) -> str | os.PathLike[str] | None:
    """Name or file of the draft source. An open LLM is replaced by its file,
    not its program: the logits of a run are a view that a run for the other engine would overwrite.
    """
    if speculation is None or isinstance(speculation, (str, os.PathLike)):
        return speculation
    _ = speculation.engine
    return speculation.path


def own_draft(model: Path, speculation: object) -> tuple[bool | None, Path | None]:
    """Return the MTP block of the model, None without one, and its file if that is a separate one.

    These are `load_model`'s `draft` and `draft_file`. A block in the model's file takes precedence over one next to it.
    """
    if speculation in ("none", "prompt_lookup") or not isinstance(speculation, (str, os.PathLike)):
        return False, None
    if speculation in ("auto", "mtp", "mtp_lookup"):
        block = find_draft(model)
        return None if speculation == "auto" else True, None if block is None or has_block(model) else block
    try:
        path = resolve(speculation)
    except StoreError as error:
        near = difflib.get_close_matches(os.fspath(speculation), _NAMES, 1, 0.7)
        text = f"there is none named {os.fspath(speculation)!r}: did you mean {near[0]}?" if near else str(error)
        error.args = (f"the draft: {text}",)
        raise
    return (True, path) if is_draft_file(path) else (False, None)


def open_draft(
    speculation: str | os.PathLike[str] | None,
    loaded: list[LoadedModel],
    ctx: int,
    kv_tokens: int,
    given: ModelOptions,
    options: Options,
) -> drafts.Proposer | None:
    """The draft for the first of the loaded models. A model that is opened for it joins them."""
    target = loaded[0]
    if target.program.draft is not None:
        own = target.program.plan.draft
        if own is not None and own.borrows:
            if speculation == "mtp_lookup":
                raise RequestError(
                    "speculation is 'mtp_lookup', but this model's assistant guesses alone: give 'mtp' or"
                    " 'prompt_lookup'",
                    field="speculation",
                )
            return drafts.AssistantProposer(target.program)
        if own is not None and own.mask is not None:
            if speculation == "mtp_lookup":
                raise RequestError(
                    "speculation is 'mtp_lookup', but this model's head fills in blocks alone: give 'mtp' or"
                    " 'prompt_lookup'",
                    field="speculation",
                )
            return drafts.DFlashProposer(target.program, target.draft_ids)
        kind = drafts.MtpLookupProposer if speculation == "mtp_lookup" else drafts.MtpProposer
        return kind(target.program, target.draft_ids)
    if speculation in (None, "none", "auto"):
        if given.draft_tokens != ModelOptions.draft_tokens:
            log.warning(
                "draft_tokens=%d (--draft-max %d) has no effect without something that guesses: add"
                " speculation='prompt_lookup' (-md prompt_lookup), or speculation (-md) with a smaller model",
                given.draft_tokens,
                given.draft_tokens,
            )
        return None
    if speculation == "prompt_lookup":
        return drafts.PromptLookupProposer()
    assert speculation is not None
    # A number of layers applies to the first model. The draft gets the GPU memory left by that model.
    small = load_model(speculation, given.backend, replace(options, gpu_layers=options.gpu_layers and "auto"))
    loaded.append(small)
    if small.source is not None or target.source is not None:
        raise RequestError(
            "a model whose encoder reads its prompts guesses no tokens for another, and no other for it;"
            " speculation='prompt_lookup' can be used",
            field="speculation",
        )
    drafts.check_vocabulary(small.tokenizer, target.tokenizer)
    ctx = min(ctx, context_limit(small.file, small.program.plan))
    return drafts.DraftModelProposer(small.program, kv_tokens, ctx, options.max_running)
