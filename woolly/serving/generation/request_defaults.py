"""Defaults of a chat from the derived model, the model's preset and the server's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from woolly.chat import ChatRequest, ReasoningOptions
from woolly.chat.reasoning_switches import SWITCHES
from woolly.llm import LLM
from woolly.llm.presets import with_system
from woolly.serving.model_manager.served_names import reasoning_of
from woolly.serving.settings.table import Settings
from woolly.store import Preset
from woolly.templates import ChatTemplate


def with_defaults(
    chat: ChatRequest,
    llm: LLM,
    settings: Settings,
    derived: Preset | None = None,
    structure: Mapping[str, Any] = MappingProxyType({}),
) -> ChatRequest:
    """Return a chat with defaults of the derived model, the model's preset and the server, in this order.

    `structure` is a field of SamplingParams for chats without a structure and tools.

    Variables of --chat-template-kwargs that the template does not read are dropped, because templates differ.
    """
    template = llm.template.for_tools if chat.tools.mode != "none" else llm.template
    asked = with_system(derived, _with_reasoning(chat, template, reasoning_of(derived)))
    asked = _with_reasoning(asked, template, settings.reasoning)
    takes_effort = asked.reasoning.effort is None and not _is_off(asked) and template.reads("reasoning_effort")
    if settings.reasoning_effort is not None and takes_effort:
        asked = replace(asked, reasoning=replace(asked.reasoning, effort=settings.reasoning_effort))
    is_split, variables = chat.reasoning.is_split, dict(asked.variables)
    if is_split is None:
        is_split = settings.reasoning_format != "none"
    for name, value in settings.template_variables.items():
        if template.reads(name):
            variables.setdefault(name, value)
    asked = replace(
        asked,
        reasoning=ReasoningOptions(asked.reasoning.effort, is_split),
        variables=variables,
        pdf_pages=settings.pdf_pages,
        allows_remote=settings.allow_remote_images,
    )
    is_free = asked.params.structure is None and asked.schema is None and asked.tools.mode == "none"
    if structure and is_free and not asked.continue_final:
        asked = replace(asked, params=replace(asked.params, **structure))
    return with_system(llm.preset, asked)


def _is_off(chat: ChatRequest) -> bool:
    """Return True if a template variable or a budget of 0 switches the reasoning off."""
    given = chat.variables
    is_variable_off = any(switch.name in given and given[switch.name] == switch.off for switch in SWITCHES)
    return is_variable_off or chat.params.reasoning_budget == 0


def _with_reasoning(chat: ChatRequest, template: ChatTemplate, reasoning: str) -> ChatRequest:
    """Return the chat with reasoning on or off, unless `reasoning` is auto or the chat sets it."""
    if reasoning == "auto" or chat.reasoning.effort is not None or "enable_thinking" in chat.variables:
        return chat
    if reasoning == "off":
        return replace(chat, reasoning=replace(chat.reasoning, effort="none"))
    if not template.reads("enable_thinking"):
        return chat
    return replace(chat, variables={**chat.variables, "enable_thinking": True})
