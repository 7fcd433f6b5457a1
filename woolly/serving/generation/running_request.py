"""RunningRequest: one request in the engine, and its output for the reader."""

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
    """A request in the engine. Chunks of n answers come interleaved; `Chunk.index` says which answer.

    Chunks wait in the queue until they are read, at most one per token, so that a slow reader delays nobody.
    A reader never sees a chunk with finish_reason "cancelled" or "error": it gets an ApiError (504 after a long
    silence, 503 if the server stops or unloads the model or its file became shorter, 500 for a fault of the server).
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
        self.owner = owner  # whose request it is
        self.id_slot = 0  # the slot that remembers its tokens
        self.reply_id = ""  # by which its client knows it
        self._has_advanced = False
        self.model = model
        self.tokenizer = tokenizer
        self.prompt_ids: tuple[int, ...] = requests[0].given
        self._driver = driver
        self._requests = tuple(requests)
        self._queue = AsyncChunkQueue(len(self._requests), notifier)
        self._arrived = self._first = self._last = arrived
        self._is_silent = False  # no progress for longer than the server allows

    @property
    def n_prompt(self) -> int:
        """Return the positions of the prompt: its tokens, and the first of an answer to what an encoder reads."""
        return len(self._requests[0].prompt)

    @property
    def prompt_text(self) -> str:
        """Return the prompt as the model sees it, template included."""
        return self.tokenizer.decode(self.prompt_ids)

    @property
    def engine_steps(self) -> tuple[int, int]:
        """Return the identity of the engine, and how many steps it has run; none after it is closed."""
        try:
            engine = self._driver.engine
        except RequestError:
            return 0, 0
        return id(engine), engine.n_steps

    @property
    def prompt_pieces(self) -> str:
        """Return the texts of the prompt's tokens one after another, which shows a space that a tokenizer adds."""
        return b"".join(map(self.tokenizer.token_bytes, self.prompt_ids)).decode("utf-8", "replace")

    @property
    def requests(self) -> tuple[Request, ...]:
        """Return the engine's requests, one per answer."""
        return self._requests

    @property
    def is_file_changed(self) -> bool:
        """True if an answer failed because the model's file became shorter: no later one can succeed."""
        return any(_is_file_changed(request.error) for request in self._requests)

    def start(self) -> None:
        """Hands the request to the engine."""
        self._driver.add(self._requests, self._listen)

    def cancel(self) -> None:
        """Cancels answers that have not finished; the engine frees their pages after the current step."""
        if any(request.finish_reason is None for request in self._requests):
            self._driver.cancel(self._requests)

    async def end_reasoning(self) -> bool:
        """End the reasoning of the answers; return True if any was reasoning."""
        going = [request for request in self._requests if request.finish_reason is None]
        return await asyncio.to_thread(self._driver.end_reasoning, going)

    async def watch(self, seconds: float) -> None:
        """Cancels the answers if no token of a prompt or an answer is computed for that long; waiting counts.

        A limit of the total time would end long answers on slow machines.
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
        """Waits for all answers and returns them."""
        async for _ in self:
            pass
        return Completion.of(self._requests)

    def usage(self) -> dict[str, int]:
        """Return the tokens so far: prompt_tokens, completion_tokens, total_tokens, cached_tokens."""
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
        """Return llama-server's timings; the prompt's time is from arrival to the first token, the queue included."""
        usage = self.usage()
        n_prompt = usage["prompt_tokens"] - usage["cached_tokens"]
        n_predicted = usage["completion_tokens"]
        prompt_ms = 1000 * (self._first - self._arrived)
        predicted_ms = 1000 * (self._last - self._first)
        n_after = max(0, n_predicted - len(self._requests))  # the first token belongs to the prompt's time
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
        """Return the seconds that the answers waited in the engine's queue; 0 if another process has the engine."""
        return max((one.begun - one.queued for one in self._requests if one.begun), default=0.0)

    def cache_note(self, *, has_text: bool = True) -> str:
        """Return the cached length of the prompt, and the text at which it diverged."""
        return cache_note(self._requests[0], has_text=has_text) or ""

    def advance(self, n_computed: int) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
        """Yield the progress of the prompt, preceded by that of its beginning the first time."""
        if not self._has_advanced:
            self._has_advanced = True
            yield self.progress(self.usage()["cached_tokens"])
        yield self.progress(n_computed)

    def progress(self, n_computed: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return llama-server's progress of the prompt, and the timings at this point."""
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
        """Return how each answer ended; "cancelled" for one that has not."""
        return [request.finish_reason or "cancelled" for request in self._requests]

    def _listen(self, request: Request, chunk: Chunk) -> None:
        """Called by the engine's thread."""
        now = time.monotonic()
        if self._first == self._arrived and (request.output or chunk.finish_reason is not None):
            self._first = now
        self._last = now
        self._queue.put(request, chunk)


def _is_file_changed(error: BaseException | None) -> bool:
    return isinstance(error, ModelError) and error.code == "file_changed"


def _silence() -> ApiError:
    return ApiError(
        504, "request_timeout", "the answer made no progress for longer than this server allows; try again later"
    )
