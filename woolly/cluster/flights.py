"""Flights: what a front has given to a replica, and can give to another one at any moment.

A request on the front is the request that the engine of a replica computes: its tokens, text and log-probabilities are
filled in as they come. If the replica is lost, the next one gets the same request with the tokens so far as `expected`,
repeats them, and goes on; what is known already is compared and not delivered again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from woolly.cache.prefix import PrefixReport
from woolly.cluster.routing import Ticket
from woolly.cluster.wire import read_array, read_error, read_logprobs, write_params
from woolly.engine import Chunk, Request
from woolly.engine.reading import Reading
from woolly.engine.threads.driver import Listener
from woolly.errors import ModelError
from woolly.plan import Pooling
from woolly.runtime import PAGE_SIZE

__all__ = ["AnswerFlight", "Flight", "Given", "ReadingFlight"]


@dataclass(frozen=True)
class Given:
    """Options of a request that it does not tell itself, as `Engine.new_request` was given them."""

    score_only: bool = False
    shown: frozenset[int] = frozenset()
    salt: bytes = b""


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
    def message(self) -> Mapping[str, Any]:
        """Returns what asks a replica for it; all that came before is forgotten where it cannot be repeated."""

    @abstractmethod
    def take(self, message: Mapping[str, Any]) -> bool:
        """Takes a reply. Returns whether it came to an end, or the replica gave it up (`is_over` says which)."""

    @abstractmethod
    def fail(self, error: Exception | None) -> None:
        """Ends it with an error; None: it is cancelled."""

    @property
    @abstractmethod
    def stop_message(self) -> Mapping[str, Any]:
        """What tells a replica that nobody wants it any more."""


class AnswerFlight(Flight):
    """A request."""

    def __init__(self, request: Request, listener: Listener, given: Given) -> None:
        super().__init__()
        self.request = request
        self._listener = listener
        self._given = given
        self._params = write_params(request.params, request.sampler.seed)
        self._begin()
        self.pages = tuple(request.digests_to(len(request.prompt) // PAGE_SIZE))
        self.n_tokens = len(request.prompt)

    def _begin(self) -> None:
        self._n_tokens = self._n_characters = self._n_logprobs = 0  # that came from this replica

    def message(self) -> Mapping[str, Any]:
        """Returns the request, with the tokens so far as those that are expected."""
        self._begin()
        request = self.request
        # Over a shifted context tokens cannot be expected: the answer is generated again, and compared all the same.
        expected = [] if request.params.context_shift else request.output
        return {
            "op": "add",
            "id": self.id,
            "prompt": request.prompt,
            "params": self._params,
            "expected": expected,
            "priority": request.priority,
            "group": request.group,
            "score_only": self._given.score_only,
            "shown": sorted(self._given.shown),
            "salt": self._given.salt.hex(),
        }

    @property
    def stop_message(self) -> Mapping[str, Any]:
        """Cancels the request."""
        return {"op": "cancel", "ids": [self.id]}

    def take(self, message: Mapping[str, Any]) -> bool:
        """Takes a step: compares what is known, adds what is new, and delivers it."""
        request, end = self.request, message.get("end")
        if end is not None and end["reason"] == "cancelled":
            return True  # the replica stops; it goes on elsewhere
        if not self._take_tokens(message.get("tokens", ())) or not self._take_text(message.get("text", "")):
            self.fail(ModelError("a replica repeated the answer differently, so that it cannot go on; ask again"))
            return True
        logprobs = read_logprobs(message.get("logprobs", ()))
        n_known = max(0, len(request.logprobs) - self._n_logprobs)
        self._n_logprobs += len(logprobs)
        request.logprobs += logprobs[n_known:]
        request.n_computed = max(request.n_computed, message.get("computed", 0))
        if request.prefix is None and "prefix" in message:
            request.prefix = PrefixReport(**message["prefix"])
        if end is not None:
            self._end(end)
        self._deliver()
        return end is not None

    def fail(self, error: Exception | None) -> None:
        """Ends the request."""
        self.request.error = error
        self.request.finish_reason = "cancelled" if error is None else "error"
        self.is_over = True
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

    def _end(self, end: Mapping[str, Any]) -> None:
        request = self.request
        request.finish_reason = end["reason"]
        request.stop_reason = end.get("stop")
        request.n_drafted, request.n_accepted = end.get("drafted", 0), end.get("accepted", 0)
        request.n_shifts = end.get("shifts", 0)
        request.prompt_logprobs = read_logprobs(end.get("prompt_logprobs", ()))
        request.error = read_error(end["error"]) if "error" in end else None
        self.is_over = True

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

    def message(self) -> Mapping[str, Any]:
        """Returns all texts: a reading is repeated from its beginning."""
        return {"op": "read", "id": self.id, "texts": self.reading.texts, "pooling": self._pooling}

    @property
    def stop_message(self) -> Mapping[str, Any]:
        """Cancels the reading."""
        return {"op": "stop_reading", "id": self.id}

    def take(self, message: Mapping[str, Any]) -> bool:
        """Takes its progress or its rows."""
        reading = self.reading
        if message["op"] == "progress":
            reading.n_batches += 1
            if reading.on_progress is not None:
                reading.on_progress(message["done"])
            return False
        self.is_over = True
        if "error" in message:
            reading.end(read_error(message["error"]))
        else:
            reading.rows = read_array(message["rows"])
            reading.tables = {int(index): read_array(table) for index, table in message["tables"].items()}
            reading.n_done = len(reading.texts)
            reading.end()
        return True

    def fail(self, error: Exception | None) -> None:
        """Ends the reading."""
        self.is_over = True
        self.reading.end(error)
