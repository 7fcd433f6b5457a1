"""Opening a model with the server's settings."""

from __future__ import annotations

from pathlib import Path

from woolly.async_llm import AsyncLLM
from woolly.serving.settings import Settings
from woolly.text import ChatTemplate

__all__ = ["open_model"]


def open_model(path: Path, settings: Settings) -> AsyncLLM:
    """The model, ready to answer; this takes as long as reading it does."""
    if settings.template is not None:
        ChatTemplate(settings.template)  # a broken one is told before anything is loaded
    return AsyncLLM(
        path,
        backend="auto" if settings.optimized_inference else "reference",
        threads=settings.threads,
        ctx=settings.ctx_size,
        kv_tokens=settings.kv_tokens,
        weight_memory=settings.weight_memory,
        kv_type=settings.cache_type_k,
        max_running=settings.parallel,
        chunk=settings.chunk,
        speculation=settings.model_draft,
        draft_tokens=settings.draft_max,
        chat_template=settings.template,
    )
