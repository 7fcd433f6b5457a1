"""Woolly: a local LLM inference engine for GGUF models.

>>> from woolly import LLM
>>> with LLM("smollm2") as llm:
...     print(llm.chat([{"role": "user", "content": "Why is the sky blue?"}]))
"""

from importlib import import_module
from typing import TYPE_CHECKING

from woolly._native import __version__
from woolly.errors import (
    CallbackError,
    GGUFError,
    ModelError,
    PlanError,
    RequestError,
    StoreError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
    WoollyError,
)

if TYPE_CHECKING:
    from woolly.async_llm import AsyncLLM
    from woolly.engine import SamplingParams, Score
    from woolly.llm import LLM, Chunk, Completion
    from woolly.text import Tokenizer

__all__ = [
    "LLM",
    "AsyncLLM",
    "CallbackError",
    "Chunk",
    "Completion",
    "GGUFError",
    "ModelError",
    "PlanError",
    "RequestError",
    "SamplingParams",
    "Score",
    "StoreError",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedError",
    "WoollyError",
    "__version__",
]

# Imported when first asked for: `woolly.gguf` alone then needs neither tokenizers nor jinja2.
_LAZY = {
    "LLM": "woolly.llm",
    "AsyncLLM": "woolly.async_llm",
    "Chunk": "woolly.llm",
    "Completion": "woolly.llm",
    "SamplingParams": "woolly.engine",
    "Score": "woolly.engine",
    "Tokenizer": "woolly.text",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
