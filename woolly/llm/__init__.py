"""Python API: `LLM` and `AsyncLLM`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from woolly.llm.answer import ChatChunk, ChatCompletion, ChatReader, ChatStream
    from woolly.llm.async_llm import AsyncChatStream, AsyncLLM, AsyncStream
    from woolly.llm.llm import LLM

__all__ = [
    "LLM",
    "AsyncChatStream",
    "AsyncLLM",
    "AsyncStream",
    "ChatChunk",
    "ChatCompletion",
    "ChatReader",
    "ChatStream",
]

# Imported on first access: the command line only reads the table of options, which needs no NumPy, and programs without
# an event loop need no asyncio.
_LAZY = {
    "LLM": "woolly.llm.llm",
    "AsyncChatStream": "woolly.llm.async_llm",
    "AsyncLLM": "woolly.llm.async_llm",
    "AsyncStream": "woolly.llm.async_llm",
    "ChatChunk": "woolly.llm.answer",
    "ChatCompletion": "woolly.llm.answer",
    "ChatReader": "woolly.llm.answer",
    "ChatStream": "woolly.llm.answer",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'woolly.llm' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
