"""Roles: converts a conversation to the order of roles that a chat template accepts."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from woolly.chat.message import Message
from woolly.errors import TemplateError

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate

_ROLES = ("system", "developer", "user", "assistant", "tool")


def check_roles(messages: Sequence[Message], source: str) -> None:
    """Raise an error for an unknown role. Most templates would render it, although no model was trained with it.

    A template may define further roles, such as `ipython`, which its source contains in quotes.
    """
    for number, message in enumerate(messages, 1):
        role = message.role
        if role in _ROLES or f"'{role}'" in source or f'"{role}"' in source:
            continue
        near = difflib.get_close_matches(role[:40].lower(), _ROLES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the roles are {', '.join(_ROLES)}"
        raise TemplateError(f"message {number} has the role {role[:40]!r}, which this model does not know; {hint}")


def fit_roles(messages: Sequence[Message], template: ChatTemplate) -> list[Message]:
    """Return the messages unchanged if the template renders them, else convert them to roles that the template renders.

    The role developer is treated as system. Tiny conversations, rendered once per template, show which roles a template
    rejects or drops. Several system messages at the start become one. An unsupported system message becomes a user
    message, and a later one becomes a reminder in a user message. Consecutive messages with the same role become one
    message. The prefix of a growing conversation does not change.
    """
    fitted = [replace(message, role="system") if message.role == "developer" else message for message in messages]
    if not template.takes("user"):
        return fitted  # the template does not render text unchanged, so nothing can be detected
    n_first = next((i for i, message in enumerate(fitted) if message.role != "system"), len(fitted))
    if n_first > 1 and not template.takes("system", "system", "user"):
        fitted[:n_first] = [_joined(fitted[:n_first])]
        n_first = 1
    if n_first and not template.takes("system", "user"):
        fitted[:n_first] = [replace(message, role="user") for message in fitted[:n_first]]
    later = [i for i, message in enumerate(fitted) if i >= n_first and message.role == "system"]
    if later and not template.takes("system", "user", "assistant", "system", "user"):
        for i in later:
            fitted[i] = Message("user", f"<system-reminder>\n{fitted[i].text}\n</system-reminder>")
    for role, sample in (("user", ("user", "user")), ("assistant", ("user", "assistant", "assistant", "user"))):
        has_pairs = any(_are_alike(one, other, role) for one, other in pairwise(fitted))
        if has_pairs and not template.takes(*sample):
            fitted = _merged(fitted, role)
    return fitted


def _are_alike(one: Message, other: Message, role: str) -> bool:
    return one.role == other.role == role and not one.calls and not other.calls


def _merged(messages: Sequence[Message], role: str) -> list[Message]:
    merged = [messages[0]]
    for message in messages[1:]:
        if _are_alike(merged[-1], message, role):
            merged[-1] = _joined([merged[-1], message])
        else:
            merged.append(message)
    return merged


def _joined(messages: Sequence[Message]) -> Message:
    """Return the last message with the contents of all messages, separated by blank lines. Parts stay parts."""
    contents = [message.content for message in messages if message.content]
    if any(isinstance(content, tuple) for content in contents):
        return replace(messages[-1], content=tuple(part for message in messages for part in message.parts))
    return replace(messages[-1], content="\n\n".join(str(content) for content in contents))
