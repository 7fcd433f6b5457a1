"""Stable prefix of a prompt whose last message is being typed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from woolly.chat.message import Message, TextPart
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.chat.chat_format import ChatFormat
    from woolly.chat.request import ChatRequest

# The last word may be incomplete. In languages without spaces, this many characters are excluded instead.
_LAST_WORD = re.compile(r"\S{1,24}\Z")

_OTHER = "\N{PILCROW SIGN}"  # typed text never begins a word with it


def with_other_ending(chat: ChatRequest) -> ChatRequest:
    """Return the conversation with a different last word. Raise RequestError if the last message is not the user's."""
    if not chat.messages or chat.messages[-1].role != "user":
        last = "there is none" if not chat.messages else f"the last one is of role {chat.messages[-1].role[:40]!r}"
        raise RequestError(
            f"messages: {last}; the message that the user is writing was expected", field="messages", names=()
        )
    return replace(chat, messages=(*chat.messages[:-1], _ended(chat.messages[-1])))


def stable_prefix(layout: ChatFormat, other: ChatFormat) -> ChatFormat:
    """Return the prefix of a prompt that does not depend on the end of its last message."""
    pairs = zip(layout.text, other.text, strict=False)
    n = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(layout.text), len(other.text)))
    n = next((item.start for item in layout.media if item.start < n < item.end), n)
    return replace(layout, text=layout.text[:n], media=tuple(item for item in layout.media if item.end <= n))


def _ended(message: Message) -> Message:
    if not isinstance(message.content, tuple):
        return replace(message, content=_LAST_WORD.sub("", message.content or "") + _OTHER)
    *before, last = message.parts or (TextPart(""),)
    if not isinstance(last, TextPart):
        return replace(message, content=(*before, last, TextPart(_OTHER)))
    return replace(message, content=(*before, TextPart(_LAST_WORD.sub("", last.text) + _OTHER)))
