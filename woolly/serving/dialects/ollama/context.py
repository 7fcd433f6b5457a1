"""The `context` of /api/generate: token ids of earlier turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from woolly.chat import ChatFormat, ChatRequest, Message
from woolly.errors import RequestError
from woolly.serving.generation.generator import Generator
from woolly.serving.model_manager.loaded_model import ModelSlot


async def format_turn(
    generator: Generator, chat: ChatRequest, context: Sequence[int], slot: ModelSlot
) -> tuple[ChatFormat, tuple[int, ...]]:
    """Return the layout of the next turn only, and the token ids before it.

    Rendered separately, a turn would begin with the template's default system prompt. So it is rendered after an answer
    with a marker, and the text after the marker is used: the end of the earlier turn and the new turn.
    """
    tokenizer = slot.model.tokenizer
    n_vocab = tokenizer.n_vocab
    for token in context:
        if not 0 <= token < n_vocab:
            raise RequestError(f"context: has {token}; expected ids from 0 to {n_vocab - 1}", field="context")
    mark = uuid4().hex
    talk = (Message("user", "."), Message("assistant", mark), *chat.messages)
    layout = await generator.format_chat(replace(chat, messages=talk), slot, None)
    _, found, after = layout.text.rpartition(mark)
    if not found:  # the template does not render earlier answers
        return await generator.format_chat(chat, slot, None), tuple(context)
    has_ended = context[-1] in tokenizer.stop_ids  # the text after the marker also ends the answer
    return replace(layout, text=after), tuple(context[:-1] if has_ended else context)
