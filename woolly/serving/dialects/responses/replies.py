"""Response objects and the events of their streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from woolly.llm import ChatChunk
from woolly.serving.dialect import ReplyContext
from woolly.serving.dialects.heartbeat import with_heartbeats
from woolly.serving.dialects.reply import settle_error
from woolly.serving.dialects.responses.bodies import ResponseBody
from woolly.serving.dialects.responses.compaction import NoteOutput
from woolly.serving.dialects.responses.conversations import ConversationStore
from woolly.serving.dialects.responses.output import Output
from woolly.serving.dialects.responses.store import ResponseStore
from woolly.serving.dialects.responses.tools import RequestTools
from woolly.serving.errors import ApiError
from woolly.serving.sse import named_sse_event

Data = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Fields that a response copies from its request, and options that affect it."""

    id: str  # id of the response
    created_at: int
    fields: Data  # initial fields of the response
    items: list[Data]  # input items
    toolbox: RequestTools
    store: ResponseStore
    conversations: ConversationStore
    owner: str
    has_summary: bool
    has_sealed: bool
    has_logprobs: bool
    is_kept: bool
    is_stream: bool
    previous: str | None = None
    conversation: str | None = None
    is_compaction: bool = False  # True if the answer is a compaction summary

    @classmethod
    def of(
        cls,
        body: ResponseBody,
        toolbox: RequestTools,
        items: list[Data],
        store: ResponseStore,
        conversations: ConversationStore,
        owner: str,
        *,
        is_compaction: bool = False,
    ) -> Form:
        """Create the form from a body; `items` is its input."""
        return cls(
            f"resp_{secrets.token_hex(16)}",
            int(time.time()),
            _fields(body),
            [item if "id" in item else {**item, "id": f"item_{secrets.token_hex(12)}"} for item in items],
            toolbox,
            store,
            conversations,
            owner,
            body.has_summary,
            body.has_sealed,
            body.has_logprobs,
            body.store is not False,
            bool(body.stream),
            body.previous_response_id,
            body.conversation_id,
            is_compaction,
        )


class _Numbers:
    """Sequence numbers of a stream's events."""

    def __init__(self) -> None:
        self._next = 0

    def frame(self, data: Data) -> bytes:
        """Serialize an event with its sequence number."""
        numbered = {**data, "sequence_number": self._next}
        self._next += 1
        return named_sse_event(numbered)


async def full_reply(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> Data:
    """Return the complete response."""
    output, response = _output(head), begun(head.form, head.running.model.name)
    with _shown(head, response) as is_cancelled:
        try:
            async for chunk in chunks:
                output.push(chunk)
        except ApiError:
            if not is_cancelled():
                raise
            output.close("incomplete")
            return _keep(head, {**response, "status": "cancelled", "output": output.items})
    return _keep(head, _ended(response, head, output))


def frames(chunks: AsyncIterator[ChatChunk], head: ReplyContext) -> AsyncIterator[bytes]:
    """Yield server-sent events: created, in progress, item events, and the end.

    Heartbeats repeat the in-progress event, because clients ignore comments and time out.
    """
    numbers, response = _Numbers(), begun(head.form, head.running.model.name)
    beat = {"type": "response.in_progress", "response": response}
    return with_heartbeats(_frames(chunks, head, numbers, response), lambda: numbers.frame(beat))


async def _frames(
    chunks: AsyncIterator[ChatChunk], head: ReplyContext, numbers: _Numbers, response: Data
) -> AsyncIterator[bytes]:
    output = _output(head)
    with _shown(head, response) as is_cancelled:
        for kind in ("created", "in_progress"):
            yield numbers.frame({"type": f"response.{kind}", "response": response})
        try:
            async for chunk in chunks:
                for data in output.push(chunk):
                    yield numbers.frame(data)
        except Exception as error:
            api_error = settle_error(error)
            for data in output.close("incomplete"):
                yield numbers.frame(data)
            end = {**response, "output": output.items}
            end |= {"status": "cancelled"} if is_cancelled() else failure(api_error)
            yield numbers.frame({"type": "response.failed", "response": _keep(head, end)})
            return
    end = _keep(head, _ended(response, head, output))
    yield numbers.frame({"type": f"response.{end['status']}", "response": end})


async def failed_frames(form: Form, model: str, error: ApiError) -> AsyncIterator[bytes]:
    """Yield the stream of a response that fails before its first item."""
    numbers, response = _Numbers(), begun(form, model)
    for kind in ("created", "in_progress"):
        yield numbers.frame({"type": f"response.{kind}", "response": response})
    yield numbers.frame({"type": "response.failed", "response": {**response, **failure(error)}})


def _output(head: ReplyContext) -> Output:
    return NoteOutput(head) if head.form.is_compaction else Output(head)


def _shown(head: ReplyContext, response: Data) -> AbstractContextManager[Any]:
    form: Form = head.form
    return form.store.running(form.owner, response, form.items, head.running.cancel)


def _keep(head: ReplyContext, response: Data) -> Data:
    form: Form = head.form
    if form.is_kept:
        form.store.keep(form.owner, response, form.items, form.previous)
    if form.conversation is not None and response["status"] in ("completed", "incomplete"):
        form.conversations.settle(form.owner, form.conversation, [*form.items, *response["output"]])
    return response


def _fields(body: ResponseBody) -> Data:
    reasoning = body.reasoning
    text = {} if body.text is None else body.text.model_dump(exclude_none=True)
    return {
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "conversation": None if body.conversation_id is None else {"id": body.conversation_id},
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary or reasoning.generate_summary,
        },
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
        "background": bool(body.background),
        "usage": None,
    }


def begun(form: Form, model: str) -> Data:
    """Return the initial response."""
    return {
        "id": form.id,
        "object": "response",
        "created_at": form.created_at,
        "completed_at": None,
        "status": "in_progress",
        "model": model,
        "output": [],
        **form.fields,
    }


def _ended(response: Data, head: ReplyContext, output: Output) -> Data:
    assert output.end is not None
    usage = output.end.usage
    ended = {
        **response,
        "status": "completed",
        "completed_at": int(time.time()),
        "output": output.items,
        "usage": {
            "input_tokens": usage.n_prompt,
            "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
            "output_tokens": usage.n_answer,
            "output_tokens_details": {"reasoning_tokens": head.count_thoughts(output.reasoning_text)},
            "total_tokens": usage.n_prompt + usage.n_answer,
        },
    }
    if output.end.reason != "length":
        return ended
    limit = head.layout.params.max_tokens  # limit of the request or the server's default
    if head.form.is_stream and (limit is None or usage.n_answer < limit):
        # Codex retries an incomplete response unchanged, but compacts the chat after this error code.
        full = "the context is full; start a new conversation, or compact this one"
        return ended | failure(ApiError(400, "context_length_exceeded", full))
    return ended | {
        "status": "incomplete",
        "completed_at": None,
        "incomplete_details": {"reason": "max_output_tokens"},
    }


def failure(error: ApiError) -> Data:
    """Return the fields of a failed response."""
    message = error.client_message if error.suggestion is None else f"{error.client_message}; {error.suggestion}"
    return {"status": "failed", "completed_at": None, "error": {"code": error.code, "message": message}}
