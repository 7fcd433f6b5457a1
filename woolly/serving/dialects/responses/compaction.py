"""Compaction of chats: POST /v1/responses/compact, and the item `compaction_trigger` of clients such as Codex."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import Request

from woolly.chat import ChatRequest, Finished, Text
from woolly.chat.compaction import compaction_request, max_summary_tokens, without_oldest
from woolly.errors import RequestError
from woolly.llm import ChatChunk
from woolly.llm.text_ids import CHARACTERS_PER_TOKEN
from woolly.serving.dialect import ReplyContext, dialect_of
from woolly.serving.dialects.encrypted_reasoning import encode_reasoning
from woolly.serving.dialects.reply import open_chat
from woolly.serving.dialects.responses.output import Output
from woolly.serving.errors import ApiError, invalid_param, to_api_error
from woolly.serving.generation.generator import Generator
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.serving.observability.logs import ignore

Data = dict[str, Any]

_TRIGGER = "compaction_trigger"
_CHARACTERS = 4  # characters per token, for user messages kept verbatim
_KEPT = 8  # 1/8 of the context for user messages kept verbatim


def without_trigger(items: Sequence[Data]) -> tuple[list[Data], bool]:
    """Return the items without the compaction trigger, and True if the last item is a trigger."""
    if not items or items[-1].get("type") != _TRIGGER:
        return list(items), False
    return list(items[:-1]), True


async def noting(request: Request, chat: ChatRequest, model: str | None) -> tuple[ChatRequest, int]:
    """Return the request that summarizes a chat, and the context size of the model.

    The oldest turns are dropped if they leave no space for a summary.
    """
    generator: Generator = request.app.state.generator
    async with request.app.state.models.use(model) as slot, generator.texts:
        ctx = slot.model.ctx  # before loading, the context size is only an estimate
        room = max_summary_tokens(ctx)
        asked = compaction_request(chat, room)
        n_dropped = 0
        while True:
            try:
                layout = await generator.format_chat(asked, slot, model)
            except RequestError as error:
                raise to_api_error(error, {"prompt": "input", **dialect_of(request).fields}) from error
            n_tokens = len(layout.text) // CHARACTERS_PER_TOKEN  # a lower bound, which avoids tokenizing long files
            if n_tokens <= ctx:
                n_tokens = await run_in_thread(slot.model.count_tokens, layout)
            left = without_oldest(asked.messages) if n_tokens + (asked.params.max_tokens or room) > ctx else None
            if left is None:
                break  # it fits, or the error reports the excess
            n_dropped += len(asked.messages) - len(left)
            asked = replace(asked, messages=left)
    if n_dropped:
        ignore(f"input (the summary omits the {n_dropped} oldest messages, which do not fit the context)")
    return asked, ctx


async def compacted(
    request: Request, chat: ChatRequest, model: str | None, form: Any, items: Sequence[Data], ctx: int
) -> Data:
    """Return the compacted chat: the latest user messages and a summary of the rest."""
    generator: Generator = request.app.state.generator
    async with AsyncExitStack() as stack:
        admitted = stack.enter_context(generator.admit(1))
        head, chunks = await open_chat(stack, request, dialect_of(request), chat, admitted, model=model, form=form)
        output = NoteOutput(head)
        async for chunk in chunks:
            output.push(chunk)
    assert output.end is not None
    usage = output.end.usage
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*recent_questions(items, ctx), *output.items],
        "usage": {
            "input_tokens": usage.n_prompt,
            "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
            "output_tokens": usage.n_answer,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.n_prompt + usage.n_answer,
        },
    }


def recent_questions(items: Sequence[Data], ctx: int) -> list[Data]:
    """Return the latest user messages that fit in a small share of the context, to be kept verbatim."""
    room, kept = ctx * _CHARACTERS // _KEPT, []
    for item in reversed(items):
        if item.get("role") != "user" or item.get("type", "message") != "message":
            continue
        room -= len(str(item.get("content")))
        if room < 0:
            break
        content = item.get("content")
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        head = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "status": "completed"}
        kept.append({**head, **item, "content": parts})
    return kept[::-1]


class NoteOutput(Output):
    """Output of a compaction: a single item, without reasoning and calls."""

    def __init__(self, head: ReplyContext) -> None:
        super().__init__(head)
        self._note = ""

    def push(self, chunk: ChatChunk) -> list[Data]:
        """Return the events of the item when the summary is complete. Raises ApiError if the summary is empty."""
        for event in chunk.events:
            if isinstance(event, Text):
                self._note += event.text
            elif isinstance(event, Finished):
                self.end = replace(event, reason="stop")  # a truncated summary is still useful
                return self._finish(self._note.strip())
        return []

    def close(self, status: str = "completed") -> list[Data]:
        """Return nothing, because no item is open."""
        return []

    def _finish(self, note: str) -> list[Data]:
        if not note:
            # Clients would retry the same request after a 500.
            raise ApiError(
                422,
                "compaction_failed",
                "the model returned only reasoning or calls instead of a summary; retry with tool_choice"
                " 'none' or a larger max_output_tokens",
            )
        item = {"id": f"cmp_{secrets.token_hex(12)}", "type": "compaction", "encrypted_content": encode_reasoning(note)}
        self.items.append(item)
        return [self._event(f"response.output_item.{what}", item=item) for what in ("added", "done")]


def reject_with_trigger(name: str) -> ApiError:
    """Return the error for a field that a compaction does not support."""
    return invalid_param(name, "not supported by compaction; remove it, and send the items themselves")
