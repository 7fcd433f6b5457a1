"""Template variables that switch reasoning on and off or set its effort, by model family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate

ON = "on"  # effort of a request that wants reasoning and leaves its effort to the model
OFF = "none"  # effort of a request without reasoning
LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")  # efforts in ascending order

# Efforts that switch reasoning off, in templates without another switch.
_OFF_WORDS = ("none", "no_think", "off", "disabled")
_QUESTION = ({"role": "user", "content": "Hi"},)


@dataclass(frozen=True)
class ReasoningSwitch:
    """Template variable for reasoning."""

    name: str
    on: Any = None  # None: the template's default
    off: Any = None
    takes_budget: bool = False  # the variable is the budget in tokens
    levels: tuple[str, ...] = ("low", "medium", "high")  # efforts that the family was trained with
    words: Mapping[str, str] = field(default_factory=dict)  # nearest efforts of those that the template rejects

    def is_in(self, template: ChatTemplate) -> bool:
        """Return True if a template reads the variable."""
        return template.reads(self.name)

    def level(self, effort: str) -> str:
        """Return the value for an effort."""
        return self.words.get(effort, effort)


# The first variable that a template reads counts.
SWITCHES = (
    ReasoningSwitch("enable_thinking", True, False),  # Qwen 3, GLM, Nemotron, Gemma 4, Granite, SmolLM3
    ReasoningSwitch("thinking", True, False),  # Kimi K3, Granite 3.3
    ReasoningSwitch("thinking_mode", "enabled", "disabled"),  # MiniMax M3
    ReasoningSwitch("thinking_budget", None, 0, takes_budget=True),  # Seed-OSS
)
EFFORT_SWITCHES = (
    ReasoningSwitch("reasoning_effort"),  # gpt-oss, Solar Open, DeepSeek V4, Hy3, Command A
    ReasoningSwitch("thinking_effort", levels=("low", "high", "max")),  # Kimi K3
    ReasoningSwitch("reasoning_strength"),  # Muse Glimmer
)


def find_switch(template: ChatTemplate) -> ReasoningSwitch | None:
    """Return the variable that switches a template's reasoning on and off."""
    return next((switch for switch in SWITCHES if switch.is_in(template)), None)


def find_effort_switch(template: ChatTemplate) -> ReasoningSwitch | None:
    """Return the variable that sets the effort of a template's reasoning, with the efforts that the template accepts.

    Most templates print any effort. An effort counts if the family has it or the template mentions it, and if the
    template does not reject it.
    """
    row = next((switch for switch in EFFORT_SWITCHES if switch.is_in(template)), None)
    if row is None:
        return None
    # Strings in statements about the variable.
    statements = re.findall(rf"\{{[%{{][^{{}}]*\b{row.name}\b[^{{}}]*[%}}]\}}", template.source)
    mentioned = set(re.findall(r"['\"]([a-z_]+)['\"]", " ".join(statements)))

    def accepts(word: str) -> bool:
        return bool(template.probe(_QUESTION, None, begins_answer=True, variables={row.name: word}))

    levels = tuple(word for word in LEVELS if word in {*row.levels, *mentioned} and accepts(word))
    off = next((word for word in _OFF_WORDS if word in mentioned and accepts(word)), None)
    return replace(row, off=off, levels=levels, words={word: _nearest(word, levels) for word in LEVELS})


def _nearest(effort: str, levels: Sequence[str]) -> str:
    """Return the effort itself, or the next higher one, or the highest."""
    if not levels:
        return effort
    rank = LEVELS.index(effort)
    return next((level for level in levels if LEVELS.index(level) >= rank), levels[-1])
