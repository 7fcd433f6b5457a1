"""A request that is running in the engine, and its output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from woolly.engine import Chunk, Completion, EngineDriver, Request
from woolly.engine.cache_note import cache_note
from woolly.engine.threads.chunk_queue import AsyncChunkQueue, LoopNotifier
from woolly.errors import ModelError, RequestError
from woolly.serving.errors import ApiError, answer_cancelled, model_changed

if TYPE_CHECKING:
    from woolly.serving.model_manager.model_info import ModelInfo
    from woolly.tokens import Tokenizer


class RunningRequest(AsyncIterator[Chunk]):
    """A request in the engine. Chunks of n answers are interleaved; `Chunk.index` is the index of the answer.

    Chunks wait in a queue of at most one entry per token, so a slow reader delays no other request. The finish reasons
    "cancelled" and "error" are raised as ApiError: 504 for a timeout, 503 if the server stops, unloads the model, or
    the model file was truncated, 500 for an internal error.
    """

    def __init__(
        self,
        driver: EngineDriver,
        tokenizer: Tokenizer,
        model: ModelInfo,
        requests: Sequence[Request],
        notifier: LoopNotifier,
        arrived: float,
        owner: str = "",
    ) -> None:
        self.owner = owner  # owner of the request
        self.id_slot = 0  # slot that records the request's tokens
        self.reply_id = ""  # id of the reply
        self._has_advanced = False
        self.model = model
        self.tokenizer = tokenizer
        self.prompt_ids: tuple[int, ...] = requests[0].given
        self._driver = driver
        self._requests = tuple(requests)
        self._queue = AsyncChunkQueue(len(self._requests), notifier)
        self._arrived = self._first = self._last = arrived
        self._is_silent = False  # True after a timeout

    @property
    def n_prompt(self) -> int:
        """Return the prompt length, including the first decoder tokens of encoder-decoder models."""
        return len(self._requests[0].prompt)

    @property
    def prompt_text(self) -> str:
        """Return the rendered prompt."""
        return self.tokenizer.decode(self.prompt_ids)

    @property
    def engine_steps(self) -> tuple[int, int]:
        """Return the identity of the engine and its number of steps, or zeros after it is closed."""
        try:
            engine = self._driver.engine
        except RequestError:
            return 0, 0
        return id(engine), engine.n_steps

    @property
    def prompt_pieces(self) -> str:
        """Return the joined text of the prompt's tokens, including a space that the tokenizer adds."""
        return b"".join(map(self.tokenizer.token_bytes, self.prompt_ids)).decode("utf-8", "replace")

    @property
    def requests(self) -> tuple[Request, ...]:
        """Return the engine's requests, one per answer."""
        return self._requests

    @property
    def is_file_changed(self) -> bool:
        """True if an answer failed because the model file was truncated.

        All further requests to this model would fail.
        """
        return any(_is_file_changed(request.error) for request in self._requests)

    def start(self) -> None:
        """Pass the request to the engine."""
        self._driver.add(self._requests, self._listen)

    def cancel(self) -> None:
        """Cancel unfinished answers; the engine frees their pages after the current step."""
        if any(request.finish_reason is None for request in self._requests):
            self._driver.cancel(self._requests)

    async def end_reasoning(self) -> bool:
        """End the reasoning of the answers; return True if an answer was reasoning."""
        going = [request for request in self._requests if request.finish_reason is None]
        return await asyncio.to_thread(self._driver.end_reasoning, going)

    async def watch(self, seconds: float) -> None:
        """Cancel the answers if no token is computed for `seconds`, including time in the queue.

        A limit on the total time would cancel long answers on slow machines.
        """
        before, since = self._progress(), time.monotonic()
        while True:
            await asyncio.sleep(seconds / 8)
            now = self._progress()
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since >= seconds:
                self._is_silent = True
                self.cancel()
                return

    def _progress(self) -> tuple[int, int]:
        return sum(one.n_computed for one in self._requests), sum(len(one.output) for one in self._requests)

    async def __anext__(self) -> Chunk:
        chunk = await self._queue.read_joined()
        if chunk is None:
            raise StopAsyncIteration
        if chunk.error is not None:
            raise model_changed() if _is_file_changed(chunk.error) else chunk.error
        if chunk.finish_reason == "cancelled":
            raise _silence() if self._is_silent else answer_cancelled()
        return chunk

    async def completion(self) -> Completion:
        """Wait for all answers and return them."""
        async for _ in self:
            pass
        return Completion.of(self._requests)

    def usage(self) -> dict[str, int]:
        """Return the token counts so far: prompt_tokens, completion_tokens, total_tokens, cached_tokens."""
        n_prompt = self.n_prompt
        n_completion = sum(len(request.output) for request in self._requests)
        cached = self._requests[0].prefix
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "cached_tokens": 0 if cached is None else cached.hit_tokens,
        }

    def timings(self) -> dict[str, float]:
        """Return llama-server's timings. The prompt time lasts from arrival to the first token, including the queue."""
        usage = self.usage()
        n_prompt = usage["prompt_tokens"] - usage["cached_tokens"]
        n_predicted = usage["completion_tokens"]
        prompt_ms = 1000 * (self._first - self._arrived)
        predicted_ms = 1000 * (self._last - self._first)
        n_after = max(0, n_predicted - len(self._requests))  # the first token belongs to the prompt time
        drafted = sum(request.n_drafted for request in self._requests)
        accepted = sum(request.n_accepted for request in self._requests)
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
            **({"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}),
        }

    @property
    def queue_seconds(self) -> float:
        """Return the longest queue time of the answers in seconds, or 0 if the engine is in another process."""
        return max((one.begun - one.queued for one in self._requests if one.begun), default=0.0)

    def cache_note(self, *, has_text: bool = True) -> str:
        """Return the cached length of the prompt and the text where it diverged."""
        return cache_note(self._requests[0], has_text=has_text) or ""

    def advance(self, n_computed: int) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """Yield the prompt progress; the first call also yields the initial progress."""
        if not self._has_advanced:
            self._has_advanced = True
            yield self.progress(self.usage()["cached_tokens"])
        yield self.progress(n_computed)

    def progress(self, n_computed: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return llama-server's prompt progress and the current timings."""
        usage = self.usage()
        n_cached = usage["cached_tokens"]
        elapsed = 1000 * (time.monotonic() - self._arrived) if n_computed > n_cached else 0.0
        total = usage["prompt_tokens"]
        done = {"total": total, "cache": n_cached, "processed": n_computed, "time_ms": elapsed}
        n_new = n_computed - n_cached
        timings = {
            **self.timings(),
            "prompt_n": n_new,
            "prompt_ms": elapsed,
            "prompt_per_token_ms": elapsed / max(1, n_new),
            "prompt_per_second": 1000 * n_new / elapsed if elapsed > 0 else 0.0,
            "predicted_n": 0,
            "predicted_ms": 0.0,
        }
        return done, timings

    def reasons(self) -> list[str]:
        """Return the finish reason of each answer; "cancelled" for unfinished answers."""
        return [request.finish_reason or "cancelled" for request in self._requests]

    def _listen(self, request: Request, chunk: Chunk) -> None:
        """Add a chunk; called on the engine's thread."""
        now = time.monotonic()
        if self._first == self._arrived and (request.output or chunk.finish_reason is not None):
            self._first = now
        self._last = now
        self._queue.put(request, chunk)


def _is_file_changed(error: BaseException | None) -> bool:
    return isinstance(error, ModelError) and error.code == "file_changed"


def _silence() -> ApiError:
    return ApiError(504, "request_timeout", "no progress within --request-timeout; try again later")
