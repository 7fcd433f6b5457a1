"""Flights: what a front has given to a replica, and can give to another one at any moment.

A request on the front is the request that the engine of a replica computes: its tokens, text and log-probabilities are
filled in as they come. If the replica is lost, the next one gets the same request with the tokens so far as `expected`,
repeats them, and goes on; what is known already is compared and not delivered again.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from woolly.cluster.replies import AnswerEnd, StepReply, read_progress, read_rows, read_step, read_thought_end
from woolly.cluster.routing import Ticket
from woolly.cluster.wire import write_marks, write_params
from woolly.engine import Chunk, Request
from woolly.engine.reading import Reading
from woolly.engine.threads.driver import Listener
from woolly.errors import ModelError
from woolly.plan import Pooling
from woolly.runtime import PAGE_SIZE
from woolly.sampling.thought import ThoughtMarks
from woolly.wire import BadMessage, WireMessage


@dataclass(frozen=True)
class Given:
    """Options of a request that it does not tell itself, as `Engine.new_request` was given them."""

    score_only: bool = False
    shown: frozenset[int] = frozenset()
    salt: bytes = b""
    thought: ThoughtMarks | None = None
    n_shared: int = 0
    thought_ends: Sequence[int] = ()


class Flight(ABC):
    """Work of one replica at a time. Callers hold the fleet's lock."""

    pages: Sequence[Hashable] = ()
    n_tokens: int = 1

    def __init__(self) -> None:
        self.id = 0  # on the wire; each replica that gets it knows it by another one
        self.ticket: Ticket | None = None
        self.n_lost = 0  # replicas that were lost with it
        self.is_over = False

    @abstractmethod
    def message(self) -> WireMessage:
        """Returns what asks a replica for it; all that came before is forgotten where it cannot be repeated."""

    @abstractmethod
    def take(self, message: WireMessage) -> bool:
        """Takes a reply. Returns whether it came to an end, or the replica gave it up (`is_over` says which).

        BadMessage if the reply cannot be right; nothing of it is taken then.
        """

    @abstractmethod
    def fail(self, error: Exception | None) -> None:
        """Ends it with an error; None: it is cancelled."""

    @property
    @abstractmethod
    def stop_message(self) -> WireMessage:
        """What tells a replica that nobody wants it any more."""


class AnswerFlight(Flight):
    """A request."""

    def __init__(self, request: Request, listener: Listener, given: Given, n_vocab: int) -> None:
        super().__init__()
        self._n_vocab = n_vocab
        self.request = request
        self._listener = listener
        self._given = given
        self._params = write_params(request.params, request.sampler.seed)
        self.thought_ends = tuple(given.thought_ends)  # tokens of the answer after which a thought was ended by name
        self._heard: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether one was
        self._begin()
        self.pages = tuple(request.digests_to(len(request.prompt) // PAGE_SIZE))
        self.n_tokens = len(request.prompt)

    def _begin(self) -> None:
        self._n_tokens = self._n_characters = self._n_logprobs = 0  # that came from this replica

    def message(self) -> WireMessage:
        """Returns the request, with the tokens so far as those that are expected."""
        self._begin()
        request = self.request
        # Over a shifted context tokens cannot be expected: the answer is generated again, and compared all the same.
        expected = [] if request.params.context_shift else request.output
        fields = {
            "id": self.id,
            "prompt": request.prompt,
            "params": self._params,
            "expected": expected,
            "priority": request.priority,
            "group": request.group,
            "score_only": self._given.score_only,
            "shown": sorted(self._given.shown),
            "salt": self._given.salt.hex(),
            "thought": write_marks(self._given.thought),
            "shared": self._given.n_shared,
            "thought_ends": self.thought_ends,
        }
        return WireMessage("add", fields)

    @property
    def is_repeating(self) -> bool:
        """Whether its replica has yet to repeat tokens that another one chose: no thought may end among them."""
        return self._n_tokens < len(self.request.output)

    def end_thought_message(self) -> WireMessage:
        """Ends the thought that the answer is in; the replica says at which token, before it forces any."""
        self._heard = queue.SimpleQueue()  # a reply that came too late is none to this question
        return WireMessage("end_thought", {"id": self.id})

    def wait_for_thought(self, seconds: float) -> bool | None:
        """Whether the thought was ended, False if the answer was; None if the replica does not say so in time."""
        try:
            return self._heard.get(timeout=seconds)
        except queue.Empty:
            return None

    @property
    def stop_message(self) -> WireMessage:
        """Cancels the request."""
        return WireMessage("cancel", {"ids": [self.id]})

    def take(self, message: WireMessage) -> bool:
        """Takes a step: compares what is known, adds what is new, and delivers it. Or the end of a thought."""
        if message.kind == "thought":
            at = read_thought_end(message, self.request.max_tokens)
            if at is not None and at not in self.thought_ends:
                self.thought_ends = (*self.thought_ends, at)
            self._heard.put(at is not None)
            return False
        step = self._read(message)
        request, end = self.request, step.end
        if end is not None and end.reason == "cancelled":
            return True  # the replica stops; it goes on elsewhere
        if not self._take_tokens(step.tokens) or not self._take_text(step.text):
            self.fail(ModelError("a replica repeated the answer differently, so that it cannot go on; ask again"))
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
            raise BadMessage(f"it says {message.kind[:20]!r} of a request")
        if most is not None and self._n_tokens + len(step.tokens) > most:
            raise BadMessage(f"it says more than the {most} tokens of an answer")
        return step

    def fail(self, error: Exception | None) -> None:
        """Ends the request."""
        self.request.error = error
        self.request.finish_reason = "cancelled" if error is None else "error"
        self._is_done()
        self._deliver()

    def _take_tokens(self, tokens: Sequence[int]) -> bool:
        """Adds tokens that are new; False if one differs from what is known."""
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
        self._heard.put(False)  # no replica replies for an answer that is over

    def _deliver(self) -> None:
        chunk = Chunk.take(self.request)
        if chunk.text or chunk.logprobs or chunk.finish_reason is not None or chunk.n_computed is not None:
            self._listener(self.request, chunk)


class ReadingFlight(Flight):
    """Texts that become a row each."""

    def __init__(self, reading: Reading, pooling: Pooling | None) -> None:
        super().__init__()
        self.reading = reading
        self._pooling = pooling
        self.n_tokens = max(1, reading.n_tokens)

    def message(self) -> WireMessage:
        """Returns all texts: a reading is repeated from its beginning."""
        return WireMessage("read", {"id": self.id, "texts": self.reading.texts, "pooling": self._pooling})

    @property
    def stop_message(self) -> WireMessage:
        """Cancels the reading."""
        return WireMessage("stop_reading", {"id": self.id})

    def take(self, message: WireMessage) -> bool:
        """Takes its progress or its rows."""
        reading = self.reading
        if message.kind == "progress":
            n_done = read_progress(message, len(reading.texts))
            reading.n_batches += 1
            if reading.on_progress is not None:
                reading.on_progress(n_done)
            return False
        if message.kind != "rows":
            raise BadMessage(f"it says {message.kind[:20]!r} of texts")
        read = read_rows(message, reading.texts, reading.source.width, reading.source.pooling == "none")
        self.is_over = True
        if read.error is not None:
            reading.end(read.error)
        else:
            reading.rows, reading.tables = read.rows, read.tables
            reading.n_done = len(reading.texts)
            reading.end()
        return True

    def fail(self, error: Exception | None) -> None:
        """Ends the reading."""
        self.is_over = True
        self.reading.end(error)
