"""Ordinary code of a user, for type checkers. It is checked, and never run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from woolly import (
    LLM,
    AsyncLLM,
    ChatChunk,
    ChatCompletion,
    ChatStream,
    Chunk,
    Completion,
    RequestError,
    SamplingParams,
    ToolCall,
)


class City(BaseModel):
    """An answer with a structure."""

    name: str
    inhabitants: int


def weather(city: str, days: int = 1) -> str:
    """Return the weather of a city."""
    return f"{city}: {days} days of rain"


def halve(ids: Any, logits: npt.NDArray[np.float32]) -> None:
    """Edit logits in place."""
    logits /= 2


def texts(llm: LLM) -> list[str]:
    """Complete prompts."""
    one: Completion = llm.generate("hi", max_tokens=5, stop=["\n"], choice=["a", "b"], stop_token_ids=[2])
    many: list[Completion] = llm.generate(["a", "b"], stop="\n", logits_processors=[halve], samplers=["top_k"])
    params = SamplingParams(stop=["\n"], dry_sequence_breakers=["a"], temperature=0)
    chunks: list[Chunk] = list(llm.generate("hi", params, stream=True))
    return [one.text, *(answer.text for answer in many), *(chunk.text for chunk in chunks)]


def chat(llm: LLM) -> ChatCompletion:
    """Chat with tools and a structure."""
    stream: ChatStream = llm.chat("hi", stream=True)
    for chunk in stream:
        calls: tuple[ToolCall, ...] = chunk.tool_calls
        print(chunk.text, chunk.reasoning, len(calls))
    parts: list[ChatChunk] = list(llm.chat([{"role": "user", "content": "hi"}], stream=True))
    print("".join(part.reasoning for part in parts))
    answer = llm.chat("hi", tools=[weather, {"type": "function", "function": {"name": "wind"}}])
    for call in answer.tool_calls:
        print(call.name, call.arguments)
    city: City | None = llm.chat("A city", schema=City).parsed
    print(city)
    try:
        answers: list[ChatCompletion] = llm.chat(["hi", "bye"], temperature=0.5)
    except RequestError as error:
        print(error.field)
        raise
    return answers[0]


def words(llm: LLM) -> Iterator[str]:
    """Yield the text of a stream."""
    yield from (chunk.text for chunk in llm.chat("hi", stream=True))


async def together() -> None:
    """Chat concurrently."""
    async with AsyncLLM("smollm2") as llm:
        first, second = await asyncio.gather(llm.chat("a", stop=["."]), llm.chat("b", tools=[weather]))
        print(first.text, second.reasoning)
        async for chunk in llm.stream_chat("c"):
            print(chunk.tool_calls, chunk.text)
