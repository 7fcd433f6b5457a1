"""What guesses tokens ahead, by the name that a caller gives it."""

from __future__ import annotations

import os

from woolly.engine import (
    Draft,
    DraftModel,
    LoadedModel,
    MtpDraft,
    PromptLookup,
    check_vocabulary,
    context_limit,
    load_model,
)
from woolly.runtime import Options

__all__ = ["open_draft", "own_draft"]


def own_draft(speculation: object) -> bool | None:
    """Whether the model's own block guesses tokens (`load_model`'s `draft`); None: if its file has one."""
    return {"auto": None, "mtp": True}.get(speculation, False) if isinstance(speculation, str) else False


def open_draft(
    speculation: str | os.PathLike[str] | None,
    loaded: list[LoadedModel],
    ctx: int,
    kv_tokens: int,
    max_running: int,
    backend: str,
    options: Options,
) -> Draft | None:
    """The draft for the first of the loaded models. A model that is opened for it joins them."""
    target = loaded[0]
    if target.program.draft is not None:
        return MtpDraft(target.program)
    if speculation in (None, "none", "auto"):
        return None
    if speculation == "prompt_lookup":
        return PromptLookup()
    assert speculation is not None
    small = load_model(speculation, backend, options)
    loaded.append(small)
    check_vocabulary(small.tokenizer, target.tokenizer)
    ctx = min(ctx, context_limit(small.file, small.program.plan))
    return DraftModel(small.program, kv_tokens, ctx, max_running)
