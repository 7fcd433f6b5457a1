"""Replies in Gemini's format: stream chunks, and the complete response."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from woolly.chat import CallArguments, CallStart, Event, Finished, Reasoning, Text
from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.call_arguments import arguments_object
from woolly.serving.dialects.completions.logprobs import LogprobTrack, PlacedLogprob
from woolly.serving.dialects.encrypted_reasoning import encode_reasoning
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.sse import sse_event

Data = dict[str, Any]
_LOWEST = -9999.0  # for impossible tokens; JSON has no infinity


@dataclass(frozen=True)
class Form:
    """Options of a body that affect its reply."""

    shows_thoughts: bool = False
    has_logprobs: bool = False


class _Candidate:
    """Converts events of an answer to the parts of a candidate. A call is sent when it is complete."""

    def __init__(self, head: ReplyContext) -> None:
        self._form: Form = head.form
        self._tokenizer = head.running.tokenizer
        self._track = LogprobTrack(self._tokenizer, shown=head.layout.shown) if self._form.has_logprobs else None
        self._placed: list[PlacedLogprob] = []
        self._call: CallStart | None = None
        self._arguments: list[str] = []
        self._thought: list[str] = []  # reasoning not yet sent in a signature
        self.thoughts: list[str] = []
        self.finish: str | None = None

    def push(self, chunk: ChatChunk) -> list[Data]:
        """Return the parts of a chunk."""
        if self._track is not None:
            self._placed += self._track.push(chunk.raw, chunk.logprobs)
        return [part for one in chunk.events for part in self._push(one)]

    def _push(self, event: Event) -> list[Data]:
        if isinstance(event, CallArguments):
            self._arguments.append(event.text)
            return []
        parts = self._take_call()
        if isinstance(event, CallStart):
            self._call = event
        elif isinstance(event, Text):
            parts.append(self._signed({"text": event.text}))
        elif isinstance(event, Reasoning):
            self._thought.append(event.text)
            self.thoughts.append(event.text)
            if self._form.shows_thoughts:
                parts.append({"text": event.text, "thought": True})
        elif isinstance(event, Finished):
            self.finish = "MAX_TOKENS" if event.reason == "length" else "STOP"
        return parts

    def _take_call(self) -> list[Data]:
        call, self._call = self._call, None
        if call is None:
            return []
        arguments = arguments_object("".join(self._arguments))
        self._arguments.clear()
        return [self._signed({"functionCall": {"id": call.id, "name": call.name, "args": arguments}})]

    def _signed(self, part: Data) -> Data:
        """Add the preceding reasoning to a part as a signature, which clients send back unchanged."""
        thought = "".join(self._thought)
        self._thought.clear()
        return {**part, "thoughtSignature": encode_reasoning(thought)} if thought else part

    def take_logprobs(self) -> Data:
        """Return the log-probabilities since the last call as a field of a candidate, if requested."""
        placed, self._placed = self._placed, []
        if self._track is None or not placed:
            return {}
        chosen = [self._likely(one.token, one.logprob) for one in placed]
        top = [{"candidates": [self._likely(*other) for other in one.top]} for one in placed]
        return {"logprobsResult": {"chosenCandidates": chosen, "topCandidates": top}}

    def _likely(self, token: int, logprob: float | None) -> Data:
        text = self._tokenizer.token_bytes(token).decode("utf-8", "replace")
        return {"token": text, "tokenId": token, "logProbability": max(_LOWEST, logprob or 0.0)}


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield server-sent events, and responses without candidates as heartbeats."""
    frame = _Frame(head)
    beat = sse_event(frame.around([], {"promptTokenCount": head.running.n_prompt}))
    return with_heartbeats(_frames(chunks, head, frame), lambda: beat)


async def _frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext, frame: _Frame) -> AsyncIterator[bytes]:
    candidates = [_Candidate(head) for _ in head.running.requests]
    async for chunk in chunks:
        one = candidates[chunk.index]
        parts = one.push(chunk)
        if parts or one.finish is not None:
            yield sse_event(frame.around([_candidate(chunk.index, one, parts)], _usage(head, candidates)))


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Data:
    """Return the complete response; adjacent parts of the same kind are merged."""
    candidates = [_Candidate(head) for _ in head.running.requests]
    parts: list[list[Data]] = [[] for _ in candidates]
    async for chunk in chunks:
        for part in candidates[chunk.index].push(chunk):
            _join(parts[chunk.index], part)
    listed = [_candidate(index, one, parts[index]) for index, one in enumerate(candidates)]
    return _Frame(head).around(listed, _usage(head, candidates))


def _join(parts: list[Data], part: Data) -> None:
    last = parts[-1] if parts else {}
    if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
        parts[-1] = {**part, **last, "text": last["text"] + part["text"]}
    else:
        parts.append(part)


def _candidate(index: int, one: _Candidate, parts: list[Data]) -> Data:
    ended = {} if one.finish is None else {"finishReason": one.finish}
    shown = parts or [{"text": ""}]  # clients read the first part
    return {"content": {"parts": shown, "role": "model"}, **ended, "index": index, **one.take_logprobs()}


class _Frame:
    """Fields shared by a response and all chunks of its stream."""

    def __init__(self, head: ReplyContext) -> None:
        self._fields = {"modelVersion": head.running.model.name, "responseId": secrets.token_urlsafe(16)}

    def around(self, candidates: list[Data], usage: Data) -> Data:
        listed = {"candidates": candidates} if candidates else {}
        return {**listed, "usageMetadata": usage, **self._fields}


def _usage(head: ReplyContext, candidates: list[_Candidate]) -> Data:
    """Return the usage in Google's format, whose candidate tokens exclude reasoning tokens."""
    usage = head.running.usage()
    n_thought = sum(head.count_thoughts("".join(one.thoughts)) for one in candidates)
    n_prompt, n_answer = usage["prompt_tokens"], usage["completion_tokens"]
    n_thought = min(n_thought, n_answer)
    return {
        "promptTokenCount": n_prompt,
        "candidatesTokenCount": n_answer - n_thought,
        "totalTokenCount": n_prompt + n_answer,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": n_prompt}],
        **({"thoughtsTokenCount": n_thought} if n_thought else {}),
        **({"cachedContentTokenCount": usage["cached_tokens"]} if usage["cached_tokens"] else {}),
    }
