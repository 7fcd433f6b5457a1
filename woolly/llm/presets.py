"""Presets in use: the sampling defaults and the system prompt that a preset gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from woolly.chat import ChatRequest
from woolly.chat.message import Message
from woolly.errors import RequestError, StoreError
from woolly.sampling import SamplingParams, options_of
from woolly.sampling.keywords import check_keywords
from woolly.store import Preset

__all__ = ["defaults_of", "with_system"]


def defaults_of(preset: Preset | None, base: SamplingParams) -> SamplingParams:
    """Returns the parameters of a request that sets none; StoreError if the preset has a wrong one."""
    if preset is None or not preset.sampling:
        return base
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in preset.sampling.items()
    }
    try:
        check_keywords(f"[{preset.name}]", given, ["system", "ctx", *options_of(SamplingParams)])
        return replace(base, **given)
    except RequestError as error:
        raise StoreError(f"{preset.file}: {error}") from error


def with_system(preset: Preset | None, chat: ChatRequest) -> ChatRequest:
    """Returns the conversation with the preset's system prompt, unless it has one of its own."""
    if preset is None or preset.system is None:
        return chat
    if any(message.role in ("system", "developer") for message in chat.messages):
        return chat
    return replace(chat, messages=(Message("system", preset.system), *chat.messages))
