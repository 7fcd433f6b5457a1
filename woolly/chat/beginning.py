"""The beginning of a chat's prompt that other chats of the same program share: system prompt and tools."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.chat.message import Message, TextPart

__all__ = ["shared_length"]


def shared_length(text: str, messages: Sequence[Message]) -> int:
    """Returns how many characters of a prompt stand before the first message that is not of the system.

    Contents are looked for from the end, because what a person says may stand in the system prompt too. 0 if the
    template wrote one of them otherwise: the length decides what is kept, never what is computed.
    """
    roles = [message.role for message in messages]
    n_system = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
    end = len(text)
    for message in reversed(messages[n_system:]):
        said = next((part.text.strip() for part in message.parts if isinstance(part, TextPart)), "")
        if not said:
            continue
        end = text.rfind(said, 0, end)
        if end < 0:
            return 0
    return end if end < len(text) else 0
