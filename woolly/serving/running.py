"""Running: one request under way in the engine, and what its reader sees of it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from woolly.engine import Chunk, Completion, Driver
from woolly.engine import Sequence as Request
from woolly.serving.errors import ApiError, answer_cancelled
from woolly.serving.library import ModelInfo
from woolly.text import Tokenizer

__all__ = ["Mailroom", "Running"]


class Mailroom:
    """From the engine's thread to the event loop: one wake-up for all chunks of a step, not one for each."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Running, Chunk]] = deque()
        self._is_called = False

    def post(self, running: Running, chunk: Chunk) -> None:
        """Called by the engine's thread."""
        self._waiting.append((running, chunk))
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # a loop that is closed has nobody who reads any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False  # first: what is posted from here on calls again
        while self._waiting:
            running, chunk = self._waiting.popleft()
            running.take(chunk)


class Running(AsyncIterator[Chunk]):
    """A request under way. Chunks of n answers come in turn; `Chunk.index` tells them apart.

    Chunks wait here until they are read, so a slow reader holds up nobody; there are at most as many as tokens.
    A reader never sees a chunk that is "cancelled" or "error": ApiError is raised instead (504 for the time limit,
    503 where the server stops or the model is unloaded, 500 for a fault of ours).
    """

    def __init__(
        self,
        driver: Driver,
        tokenizer: Tokenizer,
        model: ModelInfo,
        requests: Sequence[Request],
        mailroom: Mailroom,
        arrived: float,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.prompt_ids: tuple[int, ...] = requests[0].prompt
        self._driver = driver
        self._requests = tuple(requests)
        self._mailroom = mailroom
        self._chunks: deque[Chunk] = deque()
        self._news = asyncio.Event()
        self._n_open = len(self._requests)
        self._arrived = self._first = self._last = arrived

    @property
    def prompt_text(self) -> str:
        """The prompt as the model sees it, template and all."""
        return self.tokenizer.decode(self.prompt_ids)

    @property
    def requests(self) -> tuple[Request, ...]:
        """The engine's own view: one for each answer."""
        return self._requests

    def start(self) -> None:
        """Hands it to the engine."""
        self._driver.add(self._requests, self._listen)

    def cancel(self) -> None:
        """Ends what has not finished; its pages are free after the step under way."""
        if any(request.finish_reason is None for request in self._requests):
            self._driver.cancel(self._requests)

    def take(self, chunk: Chunk) -> None:
        """A chunk from the mailroom."""
        self._chunks.append(chunk)
        self._news.set()

    async def __anext__(self) -> Chunk:
        if not self._chunks:
            if self._n_open == 0:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        chunk = self._chunks.popleft()
        if chunk.finish_reason is not None:
            self._n_open -= 1
        if chunk.error is not None:
            raise chunk.error
        if chunk.finish_reason == "cancelled":
            raise _why_cancelled(chunk)
        return chunk

    async def completion(self) -> Completion:
        """All answers, when they have ended."""
        async for _ in self:
            pass
        return Completion.of(self._requests)

    def usage(self) -> dict[str, int]:
        """Tokens so far: prompt_tokens, completion_tokens, total_tokens, cached_tokens."""
        n_prompt = len(self.prompt_ids)
        n_completion = sum(len(request.output) for request in self._requests)
        cached = self._requests[0].prefix
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "cached_tokens": 0 if cached is None else cached.hit_tokens,
        }

    def timings(self) -> dict[str, float]:
        """What llama-server calls timings; the prompt's time is from arrival to the first token, waiting included."""
        usage = self.usage()
        n_prompt = usage["prompt_tokens"] - usage["cached_tokens"]
        n_predicted = usage["completion_tokens"]
        prompt_ms = 1000 * (self._first - self._arrived)
        predicted_ms = 1000 * (self._last - self._first)
        n_after = max(0, n_predicted - len(self._requests))  # the first token belongs to the prompt's time
        return {
            "cache_n": usage["cached_tokens"],
            "prompt_n": n_prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / max(1, n_prompt),
            "prompt_per_second": 1000 * n_prompt / prompt_ms if prompt_ms > 0 else 0.0,
            "predicted_n": n_predicted,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / max(1, n_after),
            "predicted_per_second": 1000 * n_after / predicted_ms if predicted_ms > 0 else 0.0,
        }

    def reasons(self) -> list[str]:
        """How each answer ended; "cancelled" for one that has not."""
        return [request.finish_reason or "cancelled" for request in self._requests]

    def _listen(self, _: Request, chunk: Chunk) -> None:
        """Called by the engine's thread."""
        now = time.monotonic()
        if self._first == self._arrived:
            self._first = now
        self._last = now
        self._mailroom.post(self, chunk)


def _why_cancelled(chunk: Chunk) -> ApiError:
    if chunk.stop_reason == "timeout":
        return ApiError(
            504,
            "request_timeout",
            "the answer took longer than this server allows; ask for fewer tokens",
            param="max_tokens",
        )
    return answer_cancelled()
