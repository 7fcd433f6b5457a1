"""Template variables that switch reasoning on and off or set its effort, by model family."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate


@dataclass(frozen=True)
class ReasoningSwitch:
    """Template variable for reasoning."""

    name: str
    on: Any = None  # None: the template's default
    off: Any = None
    words: Mapping[str, str] = field(default_factory=dict)  # efforts for which the template has another name

    def is_in(self, template: ChatTemplate) -> bool:
        """Return True if a template reads the variable."""
        return template.reads(self.name)


# The first variable that a template reads counts.
SWITCHES = (
    ReasoningSwitch("enable_thinking", True, False),  # Qwen 3, GLM, Nemotron, Gemma 4, Granite, SmolLM3
    ReasoningSwitch("thinking", True, False),  # DeepSeek V3.1 and later, Kimi K3
    ReasoningSwitch("thinking_mode", "enabled", "disabled"),  # MiniMax M3
    ReasoningSwitch("thinking_budget", None, 0),  # Seed-OSS
)
EFFORT_SWITCHES = (
    ReasoningSwitch("reasoning_effort"),  # gpt-oss, Solar Open
    ReasoningSwitch("thinking_effort", words={"minimal": "low", "medium": "high", "xhigh": "max"}),  # Kimi K3
    ReasoningSwitch("reasoning_strength"),  # Muse Glimmer
)


def find_switch(template: ChatTemplate) -> ReasoningSwitch | None:
    """Return the variable that switches a template's reasoning on and off."""
    if re.search(r"\benable_thinking\b", template.source):  # also where a template sets it itself
        return SWITCHES[0]
    return next((switch for switch in SWITCHES if switch.is_in(template)), None)


def find_effort_switch(template: ChatTemplate) -> ReasoningSwitch | None:
    """Return the variable that sets the effort of a template's reasoning."""
    if re.search(r"\breasoning_effort\b", template.source):
        return EFFORT_SWITCHES[0]
    return next((switch for switch in EFFORT_SWITCHES if switch.is_in(template)), None)
