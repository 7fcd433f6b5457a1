"""Formats of calls and reasoning in the facts of `woolly show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woolly.errors import TemplateError

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile
    from woolly.tokens import Tokenizer


def describe_template(file: GGUFFile) -> dict[str, Any]:
    """Return the formats of calls and reasoning that a model's chat template shows; {} for a file without one."""
    from woolly.chat.template_format import find_template_format
    from woolly.templates import ChatTemplate

    try:
        template = ChatTemplate.from_metadata(file.metadata, bos_token="", eos_token="").for_tools
    except TemplateError as error:
        return {"cannot_render": str(error)}
    if template.is_fallback:
        return {}
    known = find_template_format(template, _tokenizer(file))
    reason = known.calls.reason
    if known.calls.name == "generic" and "tool_calls" in template.source:
        reason = "the form of calls in the chat template is not known; calls are JSON objects with name and arguments"
    calls = "derived from the chat template" if known.is_derived else f"{known.calls.name}: {reason}"
    found: dict[str, Any] = {"tool_format": calls}
    if known.reasoning is not None:
        found["reasoning"] = {"start": known.reasoning.start, "end": known.reasoning.end}
        found["reasoning_format"] = "derived" if known.has_derived_reasoning else "of the table of families"
    if known.calls.example:
        found["call"] = known.calls.example
    return found


def _tokenizer(file: GGUFFile) -> Tokenizer | None:
    """Return the tokenizer if its control tokens determine the format, otherwise None: loading it takes time."""
    from woolly.chat.tools.format import FORMATS
    from woolly.tokens import Tokenizer

    tokens = file.metadata.get("tokenizer.ggml.tokens")
    marks = {format.token for format in FORMATS.values() if format.token}
    if tokens is None or marks.isdisjoint(map(str, tokens)):
        return None
    return Tokenizer.from_metadata(file.metadata)
