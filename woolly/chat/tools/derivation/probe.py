"""Similar conversations, rendered to find how a chat template writes calls and reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from woolly.templates import ChatTemplate

USER, TEXT, THOUGHT = "qaskq", "qsayq", "qmuseq"
NAMES = ("qtoolaq", "qtoolbq")
IDS = ("qid00000a", "qid00000b")  # nine letters and digits, as required by Mistral's templates
KEYS = ("qkeyaq", "qkeybq")
VALUES = (("qvalaq", "qvalbq"), ("qvalcq", "qvaldq"))
SPECIAL = "q<&\n>\"'\\q"  # a string that a format with markup may quote
# A value of each type. The names are in alphabetical order because some templates sort the arguments.
TYPED: dict[str, Any] = {
    "qtypea": SPECIAL,
    "qtypeb": 7135,
    "qtypec": 71.25,
    "qtyped": True,
    "qtypee": ["qitemq", 7],
    "qtypef": {"qsubq": "qpartq"},
    "qtypeg": None,
    "qtypeh": "qlastq",
}
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_TYPES = {"qtypeb": "integer", "qtypec": "number", "qtyped": "boolean", "qtypee": "array", "qtypef": "object"}


def _tool(name: str, keys: Sequence[str]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in keys:
        properties[key] = {"type": _TYPES.get(key, "string"), "description": "An argument."}
        if key == "qtypee":
            properties[key]["items"] = {"type": "string"}
        elif key == "qtypef":
            properties[key] |= {"properties": {"qsubq": {"type": "string"}}, "additionalProperties": {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": list(keys)}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}}


TOOLS = (_tool(NAMES[0], [*KEYS, *TYPED]), _tool(NAMES[1], KEYS))


def arguments_of(i: int) -> dict[str, Any]:
    """Return the arguments of the call with this number."""
    return dict(zip(KEYS, VALUES[i], strict=True))


@dataclass(frozen=True)
class TemplateProbe:
    """Chat template, and the form of assistant messages with calls that it accepts."""

    template: ChatTemplate
    renders_tools: bool
    content: Literal[""] | None = ""  # content of a message that consists of calls
    is_text: bool = False  # arguments are JSON text, not an object

    def prompt(self) -> str:
        """Return a prompt that ends before the answer."""
        return self._show([], begins_answer=True)

    def answer(
        self,
        text: str | None = None,
        calls: Sequence[tuple[str, Mapping[str, Any]]] = (),
        thought: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a conversation that ends with an answer. `thought` has further fields, such as the reasoning."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content if text is None else text}
        if calls:
            message["tool_calls"] = [
                {
                    "id": IDS[i],
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments) if self.is_text else arguments},
                }
                for i, (name, arguments) in enumerate(calls)
            ]
        return self._show([{**message, **(thought or {})}], begins_answer=False)

    def needs_full_tools(self) -> bool:
        """Return True if the template only renders tools whose arguments have descriptions."""
        if not self.renders_tools:
            return False
        parameters = {"type": "object", "properties": {"qkeyaq": {"type": "object"}, "qkeybq": {"type": "string"}}}
        bare = {"type": "function", "function": {"name": NAMES[0], "parameters": parameters}}
        messages = [{"role": "user", "content": USER}]
        return not self.template.probe(messages, [bare], begins_answer=True) and bool(self.prompt())

    def _show(self, messages: list[dict[str, Any]], *, begins_answer: bool) -> str:
        tools = TOOLS if self.renders_tools else None
        return self.template.probe([{"role": "user", "content": USER}, *messages], tools, begins_answer=begins_answer)
