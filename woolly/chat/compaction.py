"""Compaction: the model summarizes a conversation, and the summary replaces it in later turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from woolly.chat.media import MediaCache
from woolly.chat.message import Message
from woolly.chat.schema_prompt import add_schema
from woolly.chat.tools.tool import ToolChoice
from woolly.sampling import SamplingParams

if TYPE_CHECKING:
    from woolly.chat.request import ChatRequest

COMPACTION_PROMPT = (
    "The conversation so far will be removed, and only what you write now stays. Write a note to yourself that lets you"
    " go on without it: what the user wants, decisions and reasons, facts, names, numbers, files and code that still"
    " matter, what is done, and what is left to do. Be brief and exact. Answer with the note alone; call no tool."
)
_HEAD = "What was said before is removed. This is the note that you wrote of it:\n\n"
_MAX_SUMMARY_TOKENS = 1024  # maximum tokens of a summary, which also takes at most a quarter of the context


def summary_text(note: str) -> str:
    """Return the message text that replaces the summarized turns."""
    return f"{_HEAD}{note}"


def max_summary_tokens(ctx: int) -> int:
    """Return the maximum number of tokens of a summary."""
    return max(1, min(_MAX_SUMMARY_TOKENS, ctx // 4))


def compaction_request(chat: ChatRequest, room: int) -> ChatRequest:
    """Return the request for a summary of a conversation, at most `room` tokens long.

    Tools and a schema in the prompt stay there, so that the prompt cache can be used, but no grammar applies to the
    summary. Reasoning takes at most half of the tokens; otherwise, none might be left for the summary.
    """
    limit, thinks = chat.params.max_tokens, chat.params.reasoning_budget
    most = room if limit is None else min(room, limit)
    budget = most // 2 if thinks is None else min(thinks, most // 2)
    bare = replace(chat.params, n=1, max_tokens=most, reasoning_budget=budget, logprobs=None, stop=())
    unbound: dict[str, Any] = {}
    if bare.structure is not None:
        unbound[bare.structure[0]] = getattr(SamplingParams(), bare.structure[0])
    tools = ToolChoice(chat.tools.tools, "auto") if chat.tools.mode == "required" else chat.tools
    messages: Sequence[Message] = chat.messages
    if chat.tell_schema and chat.shown_schema is not None:
        messages = add_schema(messages, chat.shown_schema)
    return replace(
        chat,
        messages=(*messages, Message("user", COMPACTION_PROMPT)),
        params=replace(bare, **unbound),
        tools=tools,
        schema=None,
        tell_schema=False,
        continue_final=False,
        media_cache=MediaCache(),  # a conversation that is too long is formatted repeatedly
    )


def without_oldest(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """Drop the oldest quarter of a conversation that is too long to summarize. Return None if nothing can be dropped.

    The system prompt, the first question and the last message stay. The oldest quarter of the other messages is
    dropped, and tool results are dropped together with their calls.
    """
    head = next((i + 1 for i, message in enumerate(messages) if message.role == "user"), 0)
    rest = messages[head:-1]
    if not rest:
        return None
    n = -(-len(rest) // 4)
    while n < len(rest) and rest[n].role == "tool":
        n += 1
    return (*messages[:head], *rest[n:], messages[-1])
