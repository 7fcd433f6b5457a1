"""Options of the chat template and of reasoning, for `woolly run` and `woolly chat`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.cli.parse.options import ANSWER, read_text
from woolly.cli.parse.parameter import Bundle, Option
from woolly.cli.parse.usage_errors import UsageError

if TYPE_CHECKING:
    from woolly.llm import LLM

TEMPLATE = Bundle(
    "template",
    (
        Option("--reasoning -rea", "Reasoning: on, off, or auto for the template's default.", shown="auto"),
        Option("--reasoning-effort", "Effort of the reasoning, such as low, for templates that support it."),
        Option("--chat-template", "Jinja template, or the name of a built-in template.", shown="the model's"),
        Option("--chat-template-file", "File with a Jinja template.", Path, metavar="FILE"),
        Option("--chat-template-kwargs", "JSON object with template variables.", metavar="JSON"),
    ),
    section=ANSWER,
)


def engine_of(template: dict[str, Any]) -> dict[str, str]:
    """Return the keyword of `LLM` for the typed options. Raises UsageError for invalid ones."""
    if template.get("reasoning") not in (None, "on", "off", "auto"):
        raise UsageError(f"--reasoning is {template['reasoning']!r}; choose one of: auto, on, off")
    if template.get("reasoning") == "off" and "reasoning_effort" in template:
        raise UsageError("--reasoning off cannot be combined with --reasoning-effort; omit one of them")
    _variables(template)
    source, file = template.get("chat_template"), template.get("chat_template_file")
    if source is not None and file is not None:
        raise UsageError("--chat-template and --chat-template-file cannot be combined; omit one of them")
    if file is not None:
        return {"chat_template": read_text("--chat-template-file", file)}
    if source is None:
        return {}
    from woolly.templates import TEMPLATE_NAMES, builtin_template

    if "{{" not in source and "{%" not in source and source not in TEMPLATE_NAMES:
        raise UsageError(
            f"--chat-template is {source[:40]!r}, which has no placeholders; use a Jinja template, or one of"
            f" {', '.join(TEMPLATE_NAMES)}"
        )
    return {"chat_template": builtin_template(source) or source}


def keywords_of(template: dict[str, Any], llm: LLM) -> dict[str, Any]:
    """Return keywords of `LLM.chat` for the typed options."""
    variables, found = _variables(template), {}
    if template.get("reasoning") == "on" and llm.template.reads("enable_thinking"):
        variables.setdefault("enable_thinking", True)
    if (effort := "none" if template.get("reasoning") == "off" else template.get("reasoning_effort")) is not None:
        found["reasoning_effort"] = effort
    return found | ({"variables": variables} if variables else {})


def _variables(template: dict[str, Any]) -> dict[str, Any]:
    text = template.get("chat_template_kwargs", "{}")
    try:
        variables = json.loads(text)
    except ValueError:
        variables = None
    if not isinstance(variables, dict):
        raise UsageError(f"--chat-template-kwargs is {text[:40]!r}; expected a JSON object")
    return variables
