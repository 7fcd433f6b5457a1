"""Opening a model with the server's settings."""

from __future__ import annotations

from pathlib import Path

from woolly.async_llm import AsyncLLM
from woolly.runtime import Options, parse_size
from woolly.serving.memory import Estimate, estimate
from woolly.serving.settings import Settings
from woolly.text import ChatTemplate

__all__ = ["examine", "open_model"]


def examine(path: Path, settings: Settings) -> Estimate:
    """What the model would take. Errors of the file and of the settings show here, before another makes room for it."""
    if settings.template is not None:
        ChatTemplate(settings.template)
    Options(settings.threads, parse_size("weight_memory", settings.weight_memory), settings.cache_type_k)
    return estimate(path, settings)


def open_model(path: Path, settings: Settings) -> AsyncLLM:
    """The model, ready to answer; this takes as long as reading it does."""
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
