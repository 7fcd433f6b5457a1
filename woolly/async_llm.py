"""AsyncLLM: the same model for asyncio. One thread runs the engine; the event loop never waits for a step."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, overload

from woolly.engine import Chunk, Completion, Driver, SamplingParams, Score, is_list_of_prompts
from woolly.engine import Sequence as Request
from woolly.errors import RequestError
from woolly.llm import LLM, Hooks, Message, Params, Prompt, Prompts

__all__ = ["AsyncLLM", "AsyncStream"]


class AsyncLLM:
    """Takes what `LLM` takes, and answers in coroutines. A task that is cancelled cancels its request.

    >>> async with AsyncLLM("smollm2") as llm:
    ...     question = [{"role": "user", "content": "Why is the sky blue?"}]
    ...     async for chunk in llm.stream_chat(question, SamplingParams(max_tokens=50)):
    ...         print(chunk.text, end="")
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        """Opens the model as `LLM(model, **options)` does; this waits until it is loaded."""
        self.llm = LLM(model, **options)

    @overload
    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> Completion: ...

    @overload
    async def generate(
        self,
        prompt: Prompts,
        params: Params | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> list[Completion]: ...

    async def generate(
        self,
        prompt: Prompt | Prompts,
        params: Params | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> Completion | list[Completion]:
        """As `LLM.generate`, without streaming."""
        groups = await asyncio.to_thread(
            self.llm.prepare, prompt, params, timeout=timeout, priority=priority, hooks=hooks
        )
        completions = await self._complete(groups)
        return completions if is_list_of_prompts(prompt) else completions[0].checked()

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """As `LLM.chat`, without streaming."""
        requests = await asyncio.to_thread(self.llm.prepare_chat, messages, params, **options)
        return (await self._complete([requests]))[0].checked()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        priority: int = 0,
        hooks: Hooks | None = None,
    ) -> AsyncStream:
        """As `LLM.generate` with `stream`: `async for chunk in llm.stream(prompt)`.

        What cannot be served is refused by the first read, from which `timeout` counts too.
        """
        if is_list_of_prompts(prompt):
            raise RequestError("the prompt is a list, but one prompt at a time can be streamed")

        def prepare() -> Sequence[Request]:
            return self.llm.prepare(prompt, params, timeout=timeout, priority=priority, hooks=hooks)[0]

        return AsyncStream(self.llm.driver, prepare)

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> AsyncStream:
        """As `LLM.chat` with `stream`; refused as by `stream`."""
        return AsyncStream(self.llm.driver, lambda: self.llm.prepare_chat(messages, params, **options))

    async def score(self, prompt: Prompt) -> Score:
        """As `LLM.score`."""
        request = await asyncio.to_thread(self.llm.prepare_score, prompt)
        await self._run([request])
        return Score.of(request)

    async def close(self) -> None:
        """Ends the thread and frees everything; open requests end cancelled."""
        await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    async def _complete(self, groups: Sequence[Sequence[Request]]) -> list[Completion]:
        await self._run([request for group in groups for request in group])
        return [Completion.of(group) for group in groups]

    async def _run(self, requests: Sequence[Request]) -> None:
        """To their ends; where the task is cancelled, they are too."""
        async with AsyncStream(self.llm.driver, requests, raises=False) as stream:
            async for _ in stream:
                pass


class AsyncStream(AsyncIterator[Chunk]):
    """Chunks of one answer, or of several in turn. The request starts at the first one; closing or dropping ends it."""

    def __init__(
        self, driver: Driver, requests: Sequence[Request] | Callable[[], Sequence[Request]], *, raises: bool = True
    ) -> None:
        """Requests that have to be prepared yet are prepared off the event loop, which a long prompt would hold up."""
        self._driver = driver
        self._prepare = requests if callable(requests) else None
        self._requests: tuple[Request, ...] = () if callable(requests) else tuple(requests)
        self._raises = raises
        self._mail = _Mail()
        self._n_open = len(self._requests)
        self._started = self._closed = False

    async def __anext__(self) -> Chunk:
        try:
            if not self._started and not self._closed:
                await self._start()
            if self._closed or self._n_open == 0:
                raise StopAsyncIteration
            chunk = await self._mail.take()
        except BaseException:
            self._end()
            raise
        if chunk.finish_reason is not None:
            self._n_open -= 1
        if chunk.error is not None and self._raises:
            self._end()
            raise chunk.error
        return chunk

    async def aclose(self) -> None:
        """Cancels what has not finished."""
        self._end()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        self._end()

    async def _start(self) -> None:
        if self._prepare is not None:
            requests = await asyncio.to_thread(self._prepare)
            self._prepare = None
            self._requests = tuple(requests)
            self._n_open = len(self._requests)
        if not self._closed:
            self._mail.loop = asyncio.get_running_loop()
            self._driver.add(self._requests, self._mail.post)
            self._started = True

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            if self._started and self._n_open:
                self._driver.cancel(self._requests)


class _Mail:
    """From the engine's thread to a coroutine. Holds no reference to the stream, so that a dropped one is noticed."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._chunks: deque[Chunk] = deque()
        self._arrived: asyncio.Event | None = None

    def post(self, _: Request, chunk: Chunk) -> None:
        """Called by the engine's thread."""
        self._chunks.append(chunk)
        assert self.loop is not None
        # A loop that is closed has nobody who reads any more.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._wake)

    async def take(self) -> Chunk:
        """The next chunk."""
        while not self._chunks:
            self._arrived = asyncio.Event()
            if not self._chunks:
                await self._arrived.wait()
        return self._chunks.popleft()

    def _wake(self) -> None:
        if self._arrived is not None:
            self._arrived.set()
