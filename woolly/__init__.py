"""Woolly: a local LLM inference engine for GGUF models.

>>> from woolly import LLM
>>> with LLM("smollm2") as llm:
...     print(llm.chat("Why is the sky blue?"))
"""

from importlib import import_module
from typing import TYPE_CHECKING

from woolly._native import __version__
from woolly.errors import (
    CallbackError,
    DeviceError,
    GGUFError,
    KeywordError,
    ModelError,
    PlanError,
    RequestError,
    StageError,
    StoreError,
    TemplateError,
    TokenizerError,
    ToolError,
    UnsupportedError,
    WoollyError,
)

if TYPE_CHECKING:
    from woolly.chat import ToolCall
    from woolly.engine import Chunk, Completion, Score, Stream
    from woolly.llm import LLM, AsyncChatStream, AsyncLLM, AsyncStream, ChatChunk, ChatCompletion, ChatStream
    from woolly.sampling import SamplingParams
    from woolly.tokens import Tokenizer

__all__ = [
    "LLM",
    "AsyncChatStream",
    "AsyncLLM",
    "AsyncStream",
    "CallbackError",
    "ChatChunk",
    "ChatCompletion",
    "ChatStream",
    "Chunk",
    "Completion",
    "DeviceError",
    "GGUFError",
    "KeywordError",
    "ModelError",
    "PlanError",
    "RequestError",
    "SamplingParams",
    "Score",
    "StageError",
    "StoreError",
    "Stream",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "ToolError",
    "UnsupportedError",
    "WoollyError",
    "__version__",
]

# Imported on first access, so that `woolly.gguf` alone needs neither tokenizers nor jinja2.
_LAZY = {
    "LLM": "woolly.llm",
    "AsyncLLM": "woolly.llm",
    "AsyncChatStream": "woolly.llm",
    "AsyncStream": "woolly.llm",
    "ChatChunk": "woolly.llm",
    "ChatCompletion": "woolly.llm",
    "ChatStream": "woolly.llm",
    "Chunk": "woolly.engine",
    "Completion": "woolly.engine",
    "SamplingParams": "woolly.sampling",
    "Score": "woolly.engine",
    "Stream": "woolly.engine",
    "Tokenizer": "woolly.tokens",
    "ToolCall": "woolly.chat",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
