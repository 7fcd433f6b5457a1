"""FACE: `LLM` and `AsyncLLM`, what a Python program calls."""

from importlib import import_module
from typing import TYPE_CHECKING

from woolly.llm.answer import ChatChunk, ChatCompletion, ChatReader, ChatStream
from woolly.llm.llm import LLM

if TYPE_CHECKING:
    from woolly.llm.async_llm import AsyncChatStream, AsyncLLM, AsyncStream

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


def __getattr__(name: str) -> object:
    # Imported when first asked for: programs without an event loop need no asyncio.
    if name not in {"AsyncChatStream", "AsyncLLM", "AsyncStream"}:
        raise AttributeError(f"module 'woolly.llm' has no attribute {name!r}")
    return getattr(import_module("woolly.llm.async_llm"), name)
