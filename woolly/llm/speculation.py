"""Selection of the draft method: MTP, prompt lookup, draft models and heads."""

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
    """Interface of an open LLM for use as a draft model."""

    path: Path

    @property
    def engine(self) -> Engine:
        """Engine; raises if the LLM was closed."""


def draft_source_of(speculation: str | os.PathLike[str] | Opened | None) -> str | os.PathLike[str] | None:
    """Return the name or file of the draft source.

    An open LLM is replaced by its file: two engines cannot share a program, because each run overwrites the logits of
    the previous run.
    """
    if speculation is None or isinstance(speculation, (str, os.PathLike)):
        return speculation
    _ = speculation.engine
    return speculation.path


def embedded_draft(model: Path, speculation: object) -> tuple[bool | None, Path | None]:
    """Return `draft` and `draft_file` of `load_model`: whether to use an MTP block, and its separate file.

    `draft` is None if the block is optional. A block in the model file takes precedence over a separate file.
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
        text = f"unknown draft {os.fspath(speculation)!r}; did you mean {near[0]}?" if near else str(error)
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
    """Return the proposer for the first loaded model. A draft model is appended to `loaded`."""
    target = loaded[0]
    if target.program.draft is not None:
        own = target.program.plan.draft
        if own is not None and own.borrows:
            if speculation == "mtp_lookup":
                raise RequestError(
                    "speculation is 'mtp_lookup', which this model's draft head does not support; use 'mtp' or"
                    " 'prompt_lookup'",
                    field="speculation",
                )
            return drafts.AssistantProposer(target.program)
        if own is not None and own.mask is not None:
            if speculation == "mtp_lookup":
                raise RequestError(
                    "speculation is 'mtp_lookup', which this model's draft head does not support; use 'mtp' or"
                    " 'prompt_lookup'",
                    field="speculation",
                )
            return drafts.DFlashProposer(target.program, target.draft_ids)
        kind = drafts.MtpLookupProposer if speculation == "mtp_lookup" else drafts.MtpProposer
        return kind(target.program, target.draft_ids)
    if speculation in (None, "none", "auto"):
        if given.draft_tokens != ModelOptions.draft_tokens:
            log.warning(
                "draft_tokens=%d (--draft-max %d) has no effect without a draft method: add"
                " speculation='prompt_lookup' (-md prompt_lookup), or speculation (-md) with a smaller model",
                given.draft_tokens,
                given.draft_tokens,
            )
        return None
    if speculation == "prompt_lookup":
        return drafts.PromptLookupProposer()
    assert speculation is not None
    # A number of GPU layers applies to the target model. The draft model uses the remaining GPU memory.
    small = load_model(speculation, given.backend, replace(options, gpu_layers=options.gpu_layers and "auto"))
    loaded.append(small)
    if small.source is not None or target.source is not None:
        raise RequestError(
            "encoder-decoder models support no draft models and cannot be draft models; use"
            " speculation='prompt_lookup'",
            field="speculation",
        )
    if small.program.plan.diffusion is not None:
        raise RequestError(
            "diffusion language models cannot be draft models; use an autoregressive model", field="speculation"
        )
    drafts.check_vocabulary(small.tokenizer, target.tokenizer)
    ctx = min(ctx, context_limit(small.file, small.program.plan))
    return drafts.DraftModelProposer(small.program, kv_tokens, ctx, options.max_running)
