"""Anthropic's context_management: edits that shorten a long chat."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from woolly.serving.dialects.anthropic.messages import Block, Message
from woolly.serving.dialects.sampling_parameters import Items

_CLEARED = "[The result of this call was left out to save room.]"

Count = Callable[[Sequence[Message]], Awaitable[int]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class InputTokens(_Strict):
    """Number of prompt tokens."""

    type: Literal["input_tokens"]
    value: int = Field(ge=0)


class ToolUses(_Strict):
    """Number of tool calls with their results."""

    type: Literal["tool_uses"]
    value: int = Field(ge=0)


class ThinkingTurns(_Strict):
    """Number of assistant turns."""

    type: Literal["thinking_turns"]
    value: int = Field(ge=1)


class AllTurns(_Strict):
    """Selects all assistant turns, like "all"."""

    type: Literal["all"]


class ClearToolUses(_Strict):
    """Removes the results of older tool calls if the chat exceeds a length."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: InputTokens | ToolUses = InputTokens(type="input_tokens", value=100_000)
    keep: ToolUses = ToolUses(type="tool_uses", value=3)
    clear_at_least: InputTokens | None = None
    exclude_tools: Items[str] | None = None
    clear_tool_inputs: bool | Items[str] | None = None


class ClearThinking(_Strict):
    """Removes the reasoning of older turns."""

    type: Literal["clear_thinking_20251015"]
    keep: ThinkingTurns | AllTurns | Literal["all"] = ThinkingTurns(type="thinking_turns", value=1)


class ContextManagement(_Strict):
    """Edits of the chat, applied in order."""

    edits: Items[Annotated[ClearToolUses | ClearThinking, Field(discriminator="type")]] | None = Field(
        None, description="At most one of each type.", json_schema_extra={"maxItems": 2}
    )

    @field_validator("edits")
    @classmethod
    def _check_types(
        cls, edits: list[ClearToolUses | ClearThinking] | None
    ) -> list[ClearToolUses | ClearThinking] | None:
        # Each edit requires another tokenization of the chat.
        types = [edit.type for edit in edits or ()]
        if twice := next((type for type in types if types.count(type) > 1), None):
            raise PydanticCustomError(
                "repeated_edit", "{type} occurs more than once; send at most one edit of each type", {"type": twice}
            )
        return edits


@dataclass(frozen=True)
class Edited:
    """A chat after its edits."""

    messages: list[Message]
    applied: tuple[dict[str, Any], ...] = ()  # as reported in the reply
    n_before: int | None = None  # prompt tokens before the edits; None if no edit was applied
    n_after: int | None = None  # prompt tokens after the edits; None if they were not counted


async def edit_messages(given: ContextManagement, messages: Sequence[Message], count: Count) -> Edited:
    """Return the edited messages; `count` returns the prompt tokens of messages.

    `count` tokenizes all messages, so it is called only once per edited chat.
    """
    talk, applied = list(messages), list[dict[str, Any]]()
    n_first: int | None = None
    n_now: int | None = None  # token count of `talk`, once known
    for edit in given.edits or ():
        if isinstance(edit, ClearThinking):
            cleared, n = _without_thoughts(talk, edit)
            fact, least = "cleared_thinking_turns", 0
        else:
            if isinstance(edit.trigger, InputTokens):
                n_now = await count(talk) if n_now is None else n_now
                if n_now <= edit.trigger.value:
                    continue
            cleared, n = _without_results(talk, edit)
            fact, least = "cleared_tool_uses", edit.clear_at_least.value if edit.clear_at_least else 0
        if n == 0:
            continue
        n_now = await count(talk) if n_now is None else n_now
        n_cleared = await count(cleared)
        n_spared = n_now - n_cleared
        if n_spared < least:
            continue
        n_first = n_now if n_first is None else n_first
        talk, n_now = cleared, n_cleared
        applied.append({"type": edit.type, fact: n, "cleared_input_tokens": max(0, n_spared)})
    return Edited(talk, tuple(applied), n_first, n_now)


def _without_thoughts(talk: Sequence[Message], edit: ClearThinking) -> tuple[list[Message], int]:
    """Return the chat with the reasoning of the last turns only, and the number of cleared turns."""
    if not isinstance(edit.keep, ThinkingTurns):
        return list(talk), 0
    turns: dict[int, list[int]] = {}  # indices of messages with reasoning by turn; tool results do not end a turn
    turn = 0
    for i, message in enumerate(talk):
        blocks = _blocks(message)
        if message.role == "user" and not any(block.type == "tool_result" for block in blocks):
            turn += 1
        elif message.role == "assistant" and any(_is_thought(block) for block in blocks):
            turns.setdefault(turn, []).append(i)
    dropped = list(turns)[: -edit.keep.value]
    where = {i for turn in dropped for i in turns[turn]}
    return [_with(m, [b for b in _blocks(m) if not _is_thought(b)]) if i in where else m for i, m in enumerate(talk)], (
        len(dropped)
    )


def _without_results(talk: Sequence[Message], edit: ClearToolUses) -> tuple[list[Message], int]:
    """Return the chat without the results of older calls, and the number of removed results."""
    pairs = _paired(talk)
    if isinstance(edit.trigger, ToolUses) and len(pairs) <= edit.trigger.value:
        return list(talk), 0
    older = pairs[: max(0, len(pairs) - edit.keep.value)]
    # Results removed earlier, by the client or another edit, do not count.
    gone = [
        pair
        for pair in older
        if pair.use.name not in (edit.exclude_tools or ()) and pair.result.content not in (_CLEARED, None)
    ]
    results = {pair.result_at: pair.result.model_copy(update={"content": _CLEARED}) for pair in gone}
    inputs = edit.clear_tool_inputs or ()
    bare = [pair for pair in gone if inputs is True or (not isinstance(inputs, bool) and pair.use.name in inputs)]
    others = results | {pair.use_at: pair.use.model_copy(update={"input": {}}) for pair in bare}
    cleared = [_with(m, [others.get((i, j), b) for j, b in enumerate(_blocks(m))]) for i, m in enumerate(talk)]
    return cleared, len(gone)


@dataclass(frozen=True)
class _Pair:
    """A call and its result; places are (message index, block index)."""

    use_at: tuple[int, int]
    use: Block
    result_at: tuple[int, int]
    result: Block


def _paired(talk: Sequence[Message]) -> list[_Pair]:
    """Return the calls that have results, in order.

    Clients may reuse ids; some use one id for all calls. A result belongs to the first call with its id that has no
    result yet.
    """
    waiting: dict[str | None, deque[tuple[tuple[int, int], Block]]] = {}  # calls without a result by id
    pairs: list[_Pair] = []
    for i, message in enumerate(talk):
        for j, block in enumerate(_blocks(message)):
            if block.type == "tool_use" and message.role == "assistant":
                waiting.setdefault(block.id, deque()).append(((i, j), block))
            elif block.type == "tool_result" and (calls := waiting.get(block.tool_use_id)):
                pairs.append(_Pair(*calls.popleft(), (i, j), block))
    return sorted(pairs, key=lambda pair: pair.use_at)


def _with(message: Message, blocks: Sequence[Block]) -> Message:
    """Return a message with its blocks replaced. A message whose content is a string stays unchanged."""
    if isinstance(message.content, str):
        return message
    # Keep a message with only reasoning, because roles must alternate.
    return message.model_copy(update={"content": list(blocks) or [Block(type="text", text="")]})


def _blocks(message: Message) -> Sequence[Block]:
    return () if isinstance(message.content, str) else message.content


def _is_thought(block: Block) -> bool:
    return block.type in ("thinking", "redacted_thinking")
