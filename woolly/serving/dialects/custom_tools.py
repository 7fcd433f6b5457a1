"""Custom tools of OpenAI's APIs: tools with free text input, which models call as functions with one argument."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from woolly.chat import Tool
from woolly.serving.dialects.call_arguments import arguments_object
from woolly.serving.observability.logs import ignore


def custom_tool(name: str, description: Any, format: Any, where: str) -> Tool:
    """Convert a tool with free text input to a function with one argument.

    A regular expression constrains the text. A Lark grammar cannot be enforced inside a JSON string, so it is only part
    of the prompt.
    """
    format = format if isinstance(format, Mapping) else {}
    schema: dict[str, Any] = {"type": "string", "description": "The whole input."}
    texts = [description] if isinstance(description, str) else []
    is_bound = format.get("type") == "grammar" and format.get("syntax") == "regex"
    if is_bound:
        schema["pattern"] = f"^(?:{format.get('definition', '')})$"
    elif format.get("type") == "grammar":
        texts.append(f"The input follows this Lark grammar:\n{format.get('definition', '')}")
        ignore(f"{where}.format (the grammar is shown to the model, but not enforced)")
    parameters = {"type": "object", "properties": {"input": schema}, "required": ["input"]}
    return Tool(name, "\n\n".join(texts) or None, parameters, is_bound)


def custom_arguments(text: str) -> str:
    """Return the arguments of a call for an earlier input."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the input of a call from its arguments."""
    given = arguments_object(arguments).get("input", "")
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
