"""FACE: `LLM` and `AsyncLLM`, what a Python program calls."""

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
