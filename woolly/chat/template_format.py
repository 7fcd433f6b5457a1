"""Formats of calls, reasoning and messages in a chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from woolly.chat.reasoning import ReasoningFormat, find_reasoning
from woolly.chat.reasoning_switches import ReasoningSwitch, find_effort_switch, find_switch
from woolly.chat.tools.added_formats import fitting_format, installed_formats
from woolly.chat.tools.format import FORMATS, Format, find_format, read_formats
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.chat.message import Message
    from woolly.chat.tools.tool import Tool
    from woolly.templates import ChatTemplate
    from woolly.tokens import Tokenizer

# Families whose templates render calls in a different form from the one that the model writes.
_NOT_AS_SHOWN = ("harmony",)


@dataclass(frozen=True)
class TemplateFormat:
    """Formats of calls and reasoning, and the form of messages that the template accepts."""

    calls: Format
    is_derived: bool  # the call format was derived from the template
    reasoning: ReasoningFormat | None  # None: the model does not reason
    reasoning_field: str | None = None  # message field in which the template expects reasoning
    has_derived_reasoning: bool = False
    header: str = ""  # start of an answer without reasoning
    content: Literal[""] | None = ""  # content of a message that consists of calls
    has_text_arguments: bool = False  # the template expects arguments as JSON text
    switch: ReasoningSwitch | None = None  # variable that switches reasoning on and off
    effort: ReasoningSwitch | None = None  # variable of the reasoning effort
    needs_full_tools: bool = False  # the template requires descriptions and nested schemas

    def tool_to_template(self, tool: Tool) -> dict[str, Any]:
        """Return the tool that the chat template reads."""
        plain = tool.to_json()
        if self.needs_full_tools:
            function = {"description": "", **plain["function"]}
            function["parameters"] = _completed(function["parameters"])
            return {**plain, "function": function}
        return plain

    def to_template(self, message: Message) -> dict[str, Any]:
        """Return the mapping that the chat template reads."""
        plain = message.to_template()
        if message.role != "assistant":
            return plain
        if message.calls:
            if not message.content:
                plain["content"] = self.content
            if self.has_text_arguments:
                for call in plain["tool_calls"]:
                    arguments = call["function"]["arguments"]
                    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                    call["function"] = {**call["function"], "arguments": text}
        if message.reasoning and self.reasoning_field not in (None, "reasoning_content"):
            self._show_reasoning(plain, message.reasoning)
        return plain

    def _show_reasoning(self, plain: dict[str, Any], reasoning: str) -> None:
        if self.reasoning_field != "content":
            # Harmony has one message for both, and rejects text with reasoning before calls.
            if not (self.calls.name == "harmony" and plain.get("tool_calls") and plain.get("content")):
                plain[str(self.reasoning_field)] = reasoning
            return
        content = plain.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
        plain["content"] = [{"type": "thinking", "thinking": reasoning}, *parts]


def _completed(schema: Any) -> Any:
    """Return a schema with a description for each property, and explicit contents for objects and arrays."""
    if not isinstance(schema, Mapping):
        return schema
    full = dict(schema)
    if isinstance(properties := schema.get("properties"), Mapping):
        full["properties"] = {
            key: {"description": "", **_completed(value)} if isinstance(value, Mapping) else value
            for key, value in properties.items()
        }
        full.setdefault("required", [])
    if schema.get("type") == "object":
        full.setdefault("additionalProperties", {"type": "string"})
        full.setdefault("properties", {})
    if schema.get("type") == "array":
        full["items"] = _completed(schema.get("items", {"type": "string"}))
    return full


_known: WeakKeyDictionary[ChatTemplate, TemplateFormat] = WeakKeyDictionary()
_given: WeakKeyDictionary[ChatTemplate, Format] = WeakKeyDictionary()
_lock = Lock()


def use_tool_format(template: ChatTemplate, file: str | os.PathLike[str]) -> None:
    """Use a call format from a file. Raise RequestError if no entry matches the model's template."""
    formats = read_formats(Path(file))
    for each in {template, template.for_tools}:
        format = fitting_format(formats, each.source)
        if format is None:
            raise RequestError(
                f"tool_format: no row of {file} has signs of the chat template; leave signs out for any template",
                field="tool_format",
            )
        _given[each] = format


def find_template_format(template: ChatTemplate, tokenizer: Tokenizer | None = None) -> TemplateFormat:
    """Return the format of a template, derived once by rendering some tiny conversations."""
    with _lock:
        if (known := _known.get(template)) is None:
            known = _derive(template, tokenizer)
            known = replace(known, switch=find_switch(template), effort=find_effort_switch(template))
            _known[template] = known
        return known


def _derive(template: ChatTemplate, tokenizer: Tokenizer | None) -> TemplateFormat:
    row = find_format(template.source, tokenizer)
    added = _given.get(template) or fitting_format(installed_formats(), template.source)
    if template.is_fallback:
        return TemplateFormat(added or row, False, find_reasoning(template.source))
    from woolly.chat.derive_reasoning import derive_reasoning
    from woolly.chat.tools.derivation.derive_format import derive_format, find_probe

    probe = find_probe(template)
    if added is None and row.name in _NOT_AS_SHOWN:
        field = derive_reasoning(template, probe).field
        return TemplateFormat(row, False, find_reasoning(template.source), field)
    reasoning = derive_reasoning(template, probe)
    marks, header = reasoning.marks, ""
    if marks is not None and not marks.start:
        header, marks = marks.answer, None
    format = None if added else derive_format(probe, "" if marks is None else marks.start + marks.end)
    calls = added or format or row
    if format is not None and row.signs and format.marks == ((header, ""),):
        calls = row  # the header of the role is not a marker, and the template names markers that it does not show
    elif format is not None and not format.marks:
        # Without derived markers, accept the markers of the family, or of any format.
        calls = format.with_marks(row if row.is_bare else FORMATS["generic"])
    return TemplateFormat(
        calls,
        format is not None and calls is not row,
        marks,
        reasoning.field,
        reasoning.is_derived,
        header,
        probe.content,
        probe.is_text,
        needs_full_tools=probe.needs_full_tools(),
    )
