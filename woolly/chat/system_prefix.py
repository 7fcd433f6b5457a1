"""Shared prefix of the chats of one application: system prompt and tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING
from uuid import uuid4

from woolly.chat.message import Message
from woolly.errors import RequestError, TemplateError

if TYPE_CHECKING:
    from woolly.chat.request import ChatRequest


class SystemPrefix:
    """Finds the prefix that a prompt shares with prompts for other questions.

    The text of a question may also occur in the system prompt, in the template or in answers, so searching for it would
    be unreliable. Instead, the template also renders a different question.
    """

    def __init__(self, request: ChatRequest, render: Callable[[ChatRequest], str]) -> None:
        """`render` returns a prompt."""
        system = takewhile(lambda message: message.role in ("system", "developer"), request.messages)
        self._mark = uuid4().hex
        messages = (*system, Message("user", self._mark))
        self._request = replace(request, messages=messages, continue_final=False)
        self._render = render

    def length(self, text: str) -> int:
        """Return the number of characters before the first message that is not a system message.

        Renders system prompt and tools. Returns 0 if the template rejects them. The length only affects caching, not
        results.
        """
        try:
            before = self._render(self._request).partition(self._mark)[0]
        except (RequestError, TemplateError):
            return 0
        alike, most = 0, len(before)
        while alike < most:
            n = (alike + most + 1) // 2
            alike, most = (n, most) if text.startswith(before[:n]) else (alike, n - 1)
        return alike
