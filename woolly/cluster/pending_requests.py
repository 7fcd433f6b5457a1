"""Requests in flight: assigned to a replica by the front, and movable to another replica.

The front keeps a `Request` and fills in tokens, text and log-probabilities as the replica sends them. If the replica is
lost, another replica gets the request with the tokens so far as `replay_tokens`, replays them and continues. The front
verifies replayed output and does not deliver it again.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from woolly.cluster.replies import AnswerEnd, StepReply, read_progress, read_reasoning_end, read_rows, read_step
from woolly.cluster.routing import Ticket
from woolly.cluster.serialization import write_marks, write_params
from woolly.engine import Chunk, Request
from woolly.engine.pooling import PoolingJob
from woolly.engine.threads.driver import Listener
from woolly.errors import ModelError
from woolly.plan import Pooling
from woolly.runtime import PAGE_SIZE
from woolly.sampling.reasoning_budget import ReasoningMarkers
from woolly.wire import BadMessage, WireMessage


@dataclass(frozen=True)
class ForwardedOptions:
    """Options of `Engine.new_request` that a `Request` does not store, for the replica."""

    score_only: bool = False
    shown: frozenset[int] = frozenset()
    salt: bytes = b""
    reasoning_markers: ReasoningMarkers | None = None
    n_shared: int = 0
    reasoning_ends: Sequence[int] = ()


class PendingRequest(ABC):
    """Request that is assigned to one replica at a time. Callers hold the lock of the fleet."""

    pages: Sequence[Hashable] = ()
    n_tokens: int = 1

    def __init__(self) -> None:
        self.id = 0  # id in messages; each assignment has a new one
        self.ticket: Ticket | None = None
        self.n_lost = 0  # number of replicas lost while computing this request
        self.is_over = False

    @abstractmethod
    def message(self) -> WireMessage:
        """Return the message that starts the request on a replica, and reset the progress of the previous replica."""

    @abstractmethod
    def take(self, message: WireMessage) -> bool:
        """Apply a reply. Return True if the request ended (`is_over`) or the replica stopped computing it.

        Raise BadMessage for an invalid reply, which changes nothing.
        """

    @abstractmethod
    def fail(self, error: Exception | None) -> None:
        """End the request with an error, or cancel it if there is no error."""

    @property
    @abstractmethod
    def stop_message(self) -> WireMessage:
        """Message that cancels the request on its replica."""


class PendingAnswer(PendingRequest):
    """Text generation in flight."""

    def __init__(self, request: Request, listener: Listener, forwarded: ForwardedOptions, n_vocab: int) -> None:
        super().__init__()
        self._n_vocab = n_vocab
        self.request = request
        self._listener = listener
        self._forwarded = forwarded
        self._params = write_params(request.params, request.sampler.seed)
        self.reasoning_ends = tuple(forwarded.reasoning_ends)  # token counts at which a call ended the reasoning
        self._reasoning_ended: queue.SimpleQueue[bool] = queue.SimpleQueue()  # replies of the replica
        self._begin()
        self.pages = tuple(request.digests_to(len(request.prompt) // PAGE_SIZE))
        self.n_tokens = len(request.prompt)

    def _begin(self) -> None:
        self._n_tokens = self._n_characters = self._n_logprobs = 0  # counts received from the current replica

    def message(self) -> WireMessage:
        """Return the request with the tokens so far as replay tokens."""
        self._begin()
        request = self.request
        # A shifted context cannot be replayed, so the answer is generated again and compared.
        replay_tokens = [] if request.params.context_shift else request.output
        fields = {
            "id": self.id,
            "prompt": request.prompt,
            "params": self._params,
            "replay_tokens": replay_tokens,
            "priority": request.priority,
            "group": request.group,
            "score_only": self._forwarded.score_only,
            "shown": sorted(self._forwarded.shown),
            "salt": self._forwarded.salt.hex(),
            "reasoning": write_marks(self._forwarded.reasoning_markers),
            "shared": self._forwarded.n_shared,
            "reasoning_ends": self.reasoning_ends,
        }
        return WireMessage("add", fields)

    @property
    def is_repeating(self) -> bool:
        """True while the replica replays tokens, during which the reasoning must not be ended."""
        return self._n_tokens < len(self.request.output)

    def end_reasoning_message(self) -> WireMessage:
        """Return the message that ends the reasoning; the replica replies with the token count."""
        self._reasoning_ended = queue.SimpleQueue()  # drop a late reply to an earlier message
        return WireMessage("end_reasoning", {"id": self.id})

    def wait_for_reasoning_end(self, seconds: float) -> bool | None:
        """Return True if the reasoning was ended, False if the answer ended, or None on timeout."""
        try:
            return self._reasoning_ended.get(timeout=seconds)
        except queue.Empty:
            return None

    @property
    def stop_message(self) -> WireMessage:
        """Message that cancels the answer."""
        return WireMessage("cancel", {"ids": [self.id]})

    def take(self, message: WireMessage) -> bool:
        """Apply a step: verify replayed tokens, append new tokens and deliver them. Or apply the end of reasoning."""
        if message.kind == "reasoning":
            at = read_reasoning_end(message, self.request.max_tokens)
            if at is not None and at not in self.reasoning_ends:
                self.reasoning_ends = (*self.reasoning_ends, at)
            self._reasoning_ended.put(at is not None)
            return False
        step = self._read(message)
        request, end = self.request, step.end
        if end is not None and end.reason == "cancelled":
            return True  # the replica stops; another one continues
        if not self._take_tokens(step.tokens) or not self._take_text(step.text):
            self.fail(
                ModelError("a replica replayed the answer differently, so it cannot continue; send the request again")
            )
            return True
        n_known = max(0, len(request.logprobs) - self._n_logprobs)
        self._n_logprobs += len(step.logprobs)
        request.logprobs += step.logprobs[n_known:]
        request.n_computed = max(request.n_computed, step.n_computed)
        request.prefix = request.prefix or step.prefix
        if end is not None:
            self._end(end)
        self._deliver()
        return end is not None

    def _read(self, message: WireMessage) -> StepReply:
        step, most = read_step(message, self._n_vocab), self.request.max_tokens
        if message.kind != "step":
            raise BadMessage(f"unexpected message {message.kind[:20]!r} for a request")
        if most is not None and self._n_tokens + len(step.tokens) > most:
            raise BadMessage(f"more than the maximum of {most} answer tokens")
        return step

    def fail(self, error: Exception | None) -> None:
        """End the request."""
        self.request.error = error
        self.request.finish_reason = "cancelled" if error is None else "error"
        self._is_done()
        self._deliver()

    def _take_tokens(self, tokens: Sequence[int]) -> bool:
        """Append new tokens; return False if a replayed token differs."""
        output = self.request.output
        n_known = len(output) - self._n_tokens
        if n_known > 0 and list(tokens[:n_known]) != output[self._n_tokens : self._n_tokens + len(tokens)]:
            return False
        new = tokens[max(0, n_known) :]
        self._n_tokens += len(tokens)
        output += new
        self.request.context += new
        return True

    def _take_text(self, text: str) -> bool:
        n_known = len(self.request.text) - self._n_characters
        if n_known > 0 and text[:n_known] != self.request.text[self._n_characters : self._n_characters + len(text)]:
            return False
        self._n_characters += len(text)
        if new := text[max(0, n_known) :]:
            self.request.show(new)
        return True

    def _end(self, end: AnswerEnd) -> None:
        request = self.request
        request.finish_reason = end.reason
        request.stop_reason = end.stop
        request.n_drafted, request.n_accepted = end.n_drafted, end.n_accepted
        request.n_shifts = end.n_shifts
        request.prompt_logprobs = end.prompt_logprobs
        request.error = end.error
        self._is_done()

    def _is_done(self) -> None:
        self.is_over = True
        self._reasoning_ended.put(False)  # no replica replies for a finished answer

    def _deliver(self) -> None:
        chunk = Chunk.take(self.request)
        if chunk.text or chunk.logprobs or chunk.finish_reason is not None or chunk.n_computed is not None:
            self._listener(self.request, chunk)


class PendingPooling(PendingRequest):
    """Embedding or scoring call in flight."""

    def __init__(self, job: PoolingJob, pooling: Pooling | None) -> None:
        super().__init__()
        self.job = job
        self._pooling = pooling
        self.n_tokens = max(1, job.n_tokens)

    def message(self) -> WireMessage:
        """Return all texts, because the call restarts from the beginning on another replica."""
        return WireMessage("pool", {"id": self.id, "texts": self.job.texts, "pooling": self._pooling})

    @property
    def stop_message(self) -> WireMessage:
        """Message that cancels the call."""
        return WireMessage("cancel_pooling", {"id": self.id})

    def take(self, message: WireMessage) -> bool:
        """Apply a progress report or the result rows."""
        job = self.job
        if message.kind == "progress":
            n_done = read_progress(message, len(job.texts))
            job.n_batches += 1
            if job.on_progress is not None:
                job.on_progress(n_done)
            return False
        if message.kind != "rows":
            raise BadMessage(f"unexpected message {message.kind[:20]!r} for texts")
        read = read_rows(message, job.texts, job.pooler.width, job.pooler.pooling == "none")
        self.is_over = True
        if read.error is not None:
            job.end(read.error)
        else:
            job.rows, job.tables = read.rows, read.tables
            job.n_done = len(job.texts)
            job.end()
        return True

    def fail(self, error: Exception | None) -> None:
        """End the call."""
        self.is_over = True
        self.job.end(error)
