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
    """Find the prefix that a prompt shares with one of another question.

    What a person says may stand in the system prompt, in the template's own words and in the answers too, so that it
    cannot be looked for: the template renders another question in its place.
    """

    def __init__(self, request: ChatRequest, render: Callable[[ChatRequest], str]) -> None:
        """`render` returns a prompt."""
        system = takewhile(lambda message: message.role in ("system", "developer"), request.messages)
        self._mark = uuid4().hex
        messages = (*system, Message("user", self._mark))
        self._request = replace(request, messages=messages, continue_final=False)
        self._render = render

    def length(self, text: str) -> int:
        """Returns how many characters of the prompt stand before the first message that is not of the system.

        It renders system prompt and tools. 0 if the template refuses that: the length decides what is kept, never what
        is computed.
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
