"""Reasoning in the terms of each API: switches, efforts and token budgets as an effort and a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from woolly.chat.reasoning_switches import OFF, ON


@dataclass(frozen=True)
class Thinking:
    """Reasoning that a request asks for, in a form that is independent of the API."""

    effort: str | None = None  # as in ReasoningOptions: "none", "on", a level, or None for the model's default
    budget: int | None = None  # maximum reasoning tokens; -1: no limit


def read_thinking(is_on: bool | None = None, effort: str | None = None, budget: int | None = None) -> Thinking:
    """Return the reasoning for a switch, an effort and a budget. False and a budget of 0 switch reasoning off.

    A switch or a budget without an effort leaves the effort to the model.
    """
    if is_on is False or budget == 0:
        return Thinking(OFF, budget or None)
    if effort is None and (is_on or (budget or 0) > 0):
        effort = ON
    return Thinking(effort, budget)


@dataclass(frozen=True)
class ReasoningTerms:
    """Fields of one API for reasoning, as examples of each wish. The documentation lists them, and tests send them."""

    api: str
    path: str
    missing: Thinking  # without any of the fields
    off: tuple[Mapping[str, Any], ...]
    on: tuple[Mapping[str, Any], ...]
    low: tuple[Mapping[str, Any], ...]
    budget: tuple[Mapping[str, Any], ...]  # of 100 tokens


_CHAT_OFF: tuple[Mapping[str, Any], ...] = (
    {"reasoning_effort": "none"},
    {"reasoning": {"enabled": False}},
    {"enable_thinking": False},
    {"thinking": {"type": "disabled"}},
)
_CHAT_ON: tuple[Mapping[str, Any], ...] = (
    {"reasoning": {"enabled": True}},
    {"enable_thinking": True},
    {"thinking": {"type": "enabled"}},
)
_CHAT_LOW: tuple[Mapping[str, Any], ...] = ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}})
_CHAT_BUDGET: tuple[Mapping[str, Any], ...] = (
    {"reasoning_budget": 100},
    {"reasoning": {"max_tokens": 100}},
    {"thinking": {"type": "enabled", "budget_tokens": 100}},
)
_LLAMA_OFF = {"chat_template_kwargs": {"enable_thinking": False}}
_LLAMA_ON = {"chat_template_kwargs": {"enable_thinking": True}}

TERMS = (
    ReasoningTerms("OpenAI chat", "/v1/chat/completions", Thinking(), _CHAT_OFF, _CHAT_ON, _CHAT_LOW, _CHAT_BUDGET),
    ReasoningTerms(
        "OpenAI responses",
        "/v1/responses",
        Thinking(),
        ({"reasoning": {"effort": "none"}},),
        ({"reasoning": {"effort": "on"}},),
        ({"reasoning": {"effort": "low"}},),
        ({"reasoning_budget": 100},),
    ),
    ReasoningTerms(
        "Anthropic",
        "/v1/messages",
        Thinking(OFF),
        ({"thinking": {"type": "disabled"}},),
        ({"thinking": {"type": "enabled"}}, {"thinking": {"type": "adaptive"}}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}},),
    ),
    ReasoningTerms(
        "Gemini",
        "/v1beta/models/{model}:generateContent",
        Thinking(),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}},),
        (),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}}},),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": 100}}},),
    ),
    ReasoningTerms(
        "Ollama",
        "/api/chat",
        Thinking(),
        ({"think": False},),
        ({"think": True},),
        ({"think": "low"},),
        (),
    ),
    ReasoningTerms(
        "llama-server",
        "/v1/chat/completions",
        Thinking(),
        (_LLAMA_OFF, {"thinking_budget_tokens": 0}),
        (_LLAMA_ON,),
        ({"reasoning_effort": "low"},),
        ({"thinking_budget_tokens": 100},),
    ),
    ReasoningTerms("Ole", "/api/v1/inference/chat", Thinking(), _CHAT_OFF, _CHAT_ON, _CHAT_LOW, _CHAT_BUDGET),
)
