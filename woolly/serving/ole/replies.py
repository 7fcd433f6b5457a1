"""The Reply: the answer to a conversation, whole or in OpenAI's chunks, kept in its session before its end is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from woolly.serving.generation import Running
from woolly.serving.ole.conversation import Conversation
from woolly.serving.openai.answer import Answer
from woolly.serving.openai.envelope import Envelope, timings_of, usage_of
from woolly.serving.openai.layout import Layout
from woolly.serving.openai.schema import OpenAIRequest

__all__ = ["Reply"]


class Reply:
    """Reads the n answers of a running request."""

    def __init__(self, layout: Layout, running: Running, talk: Conversation) -> None:
        self._running = running
        self._talk = talk
        self._answers = [layout.answer(running) for _ in range(layout.generation.params.n)]

    @property
    def model(self) -> str:
        """Who answers."""
        return self._running.model.name

    def message(self, index: int) -> dict[str, Any]:
        """One of the answers so far."""
        return self._answers[index].message()

    @property
    def timings(self) -> dict[str, float]:
        """Times so far."""
        return timings_of([self._running])

    @property
    def figures(self) -> dict[str, Any]:
        """Tokens and times so far."""
        return {"usage": usage_of([self._running]), "timings": self.timings}

    async def whole(self) -> dict[str, Any]:
        """All of it."""
        async for _ in self.deltas():
            pass
        choices = [answer.choice(index) for index, answer in enumerate(self._answers)]
        return self._envelope("chat.completion").around(choices, **self._session, **self.figures)

    async def chunks(self, body: OpenAIRequest) -> AsyncIterator[dict[str, Any]]:
        """OpenAI's chunks; the last one of each answer has a finish reason, the last of all timings.

        Where nothing is said about usage, that last chunk has it too. With include_usage it comes as OpenAI sends it,
        in a chunk of its own behind a null in every other.
        """
        wanted = None if body.stream_options is None else body.stream_options.include_usage
        always: dict[str, Any] = {"usage": None} if wanted else {}
        envelope = self._envelope("chat.completion.chunk")

        def chunk(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            if delta or reason:
                choice["logprobs"] = self._answers[index].take_logprobs()
            timed = {"timings": self.timings} if body.timings_per_token else {}
            return envelope.around([choice], **self._session, **always, **timed)

        for index in range(len(self._answers)):
            yield chunk(index, {"role": "assistant", "content": ""})
        n_open = len(self._answers)
        async for index, delta, reason in self.deltas():
            n_open -= reason is not None
            last = {} if n_open else self.figures if wanted is None else {"timings": self.timings}
            yield chunk(index, delta, reason) | last
        if wanted:
            yield envelope.around([], **self._session, **self.figures)

    async def deltas(self) -> AsyncIterator[tuple[int, dict[str, Any], str | None]]:
        """(which answer, what is added, why it ended); an answer's end adds nothing more."""
        async for chunk in self._running:
            answer: Answer = self._answers[chunk.index]
            for delta in answer.push(chunk):
                yield chunk.index, delta, None
            if chunk.finish_reason is not None:
                if chunk.index == 0:
                    await self._talk.keep(self._running, answer.message())
                yield chunk.index, {}, answer.finish_reason

    @property
    def _session(self) -> dict[str, Any]:
        return {} if self._talk.session_id is None else {"session_id": self._talk.session_id}

    def _envelope(self, kind: str) -> Envelope:
        return Envelope("chatcmpl", kind, self._running.model.name)
