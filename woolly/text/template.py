"""Chat templates: a conversation becomes the text that a model was trained to continue.

A GGUF file brings its template as a Jinja program. `ChatTemplate` runs it in the sandbox of `woolly.text.sandbox`
on a plain copy of the conversation, so a template sees data and nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from woolly.errors import TemplateError

if TYPE_CHECKING:
    from woolly.text.sandbox import CompiledTemplate

__all__ = ["CHATML", "ChatTemplate"]

#: For models whose file brings no template: the plain ChatML turns that most chat models have seen.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

#: What a render may cost (see `sandbox_budget`): a constant, a share for each character of the conversation, and a
#: share that grows with its messages, because honest templates look back at all messages from each of them (measured:
#: 50 units a pair), or append each to one long string.
WORK, WORK_PER_CHARACTER, WORK_PER_PAIR = 4_000_000, 64, 128
MEMORY, MEMORY_PER_CHARACTER, MEMORY_PER_PAIR = 32 << 20, 64, 4
SECONDS, WORK_PER_SECOND = 5.0, 10_000_000

#: What every template may read, so that none of them is a switch of its own.
_GIVEN = frozenset(["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"])

_PROBE_SHARE = 16
_PROBE = "woolly-probe"
_MAX_DEPTH = 80
_MAX_VALUES = 2_000_000
_MAX_BITS = 1024


class ChatTemplate:
    """A chat template, compiled once; any number of threads may render it at once.

    `source` None stands for `CHATML`, and then `is_fallback` is true. A template that takes message content only as
    text gets lists of text parts joined by newlines; one that takes only parts gets text wrapped as one part.
    """

    source: str
    is_fallback: bool

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        # Jinja is loaded for the first template, not by importing woolly.
        from woolly.text.sandbox import CompiledTemplate

        if source is not None and not isinstance(source, str):
            raise TemplateError(f"a chat template must be a string, not {type(source).__name__}")
        self.is_fallback = source is None
        self.source = CHATML if source is None else source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: CompiledTemplate = CompiledTemplate(self.source)
        self._for_tools: ChatTemplate | None = None
        takes_text = _PROBE in self._probe(_PROBE)
        shown = self._probe([{"type": "text", "text": _PROBE}])
        # A template that prints the list itself has not understood it.
        self._takes_parts = _PROBE in shown and "'type'" not in shown and '"type"' not in shown
        self._needs_parts = self._takes_parts and not takes_text

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, bos_token: str, eos_token: str) -> ChatTemplate:
        """The template of a GGUF file: `tokenizer.chat_template`, and its `tool_use` variant for calls with tools."""

        def read(key: str) -> str | None:
            source = metadata.get(key)
            if source is not None and not isinstance(source, str):
                raise TemplateError(f"{key} must be a string, not {type(source).__name__}")
            return source if source and not source.isspace() else None

        source = read("tokenizer.chat_template") or read("tokenizer.chat_template.default")
        template = cls(source, bos_token=bos_token, eos_token=eos_token)
        tool_source = read("tokenizer.chat_template.tool_use")
        if tool_source is not None:
            template._for_tools = cls(tool_source, bos_token=bos_token, eos_token=eos_token)
        return template

    @property
    def tool_source(self) -> str:
        """The source that lays out conversations with tools."""
        return self.source if self._for_tools is None else self._for_tools.source

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`; `variables` are the template's own switches, such as `enable_thinking`.

        TemplateError where tools, documents or a variable is given that the template never looks at.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(
                messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        _check_messages(messages)
        self._check_names(tools=tools, documents=documents, variables=variables)
        intake = _Intake()
        plain = {
            **self._tokens,
            **{name: intake.copy(value, name) for name, value in variables.items()},
            "messages": [
                self._fit(intake.copy(message, f"message {number}"), number)
                for number, message in enumerate(messages, 1)
            ],
            "tools": intake.copy(tools, "tools"),
            "documents": intake.copy(documents, "documents"),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return self._run(plain, intake.size)

    def _check_names(self, *, tools: Any, documents: Any, variables: Mapping[str, Any]) -> None:
        """Refuse what the template would silently drop."""
        known = self._compiled.variables
        whose = "this model's chat template"
        if self.is_fallback:
            whose = "this model brings no chat template, and ChatML, which stands in for it,"
        for name, value in (("tools", tools), ("documents", documents)):
            if value and name not in known:
                raise TemplateError(f"{whose} takes no {name}")
        for name in variables:
            if name not in known:
                # Of a hostile template no more than a few short names are shown.
                switches = sorted(switch for switch in known - _GIVEN if len(switch) <= 40)
                near = difflib.get_close_matches(name[:40], switches, n=1)
                hint = ", ".join(map(repr, switches[:8])) or "none"
                remedy = f"did you mean {near[0]!r}?" if near else f"those that it takes: {hint}"
                raise TemplateError(f"{whose} takes no variable {name[:40]!r}; {remedy}")

    def _run(self, plain: dict[str, Any], size: int, share: int = 1) -> str:
        from woolly.text.sandbox_budget import Budget

        n_messages = len(plain["messages"])
        work = (WORK + WORK_PER_CHARACTER * size + WORK_PER_PAIR * n_messages**2) // share
        memory = (MEMORY + (MEMORY_PER_CHARACTER + MEMORY_PER_PAIR * n_messages) * size) // share
        return self._compiled.render(plain, Budget(work, memory, SECONDS / share + work / WORK_PER_SECOND))

    def _probe(self, content: Any) -> str:
        """What the template makes of one user message, or nothing where it rejects that."""
        plain = {
            **self._tokens,
            "messages": [{"role": "user", "content": content}],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self._run(plain, 0, _PROBE_SHARE)
        except TemplateError:
            return ""

    def _fit(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        """`message` with its content in the form that the template understands."""
        content = message.get("content")
        if self.is_fallback and not isinstance(content, (str, list)):
            # An answer may be nothing but calls; anything else without text is a mistake.
            if content is not None or message["role"] != "assistant":
                raise TemplateError(
                    f"message {number} of role {message['role'][:40]!r} needs a 'content' that is a string or a list "
                    f"of text parts, not {type(content).__name__}"
                )
            message["content"] = ""
        elif isinstance(content, str) and self._needs_parts:
            message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and not self._takes_parts:
            for part in content:
                if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                    raise TemplateError(
                        f"message {number} holds a part of type {kind!r}, "
                        "but the chat template of this model takes only text parts"
                    )
            message["content"] = "\n".join(part["text"] for part in content)
        return message


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, (list, tuple)):
        raise TemplateError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise TemplateError("messages is empty; a conversation has at least one message")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise TemplateError(f"message {number} must be a mapping with a role, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise TemplateError(f"message {number} needs a 'role' that is a string")


class _Intake:
    """Copies what a caller hands in to plain data, and counts its characters."""

    def __init__(self) -> None:
        self.size = 0
        self._n_values = 0

    def copy(self, value: Any, where: str, depth: int = 0) -> Any:
        """`value` as str, int, float, bool, None, list and dict, or an error that names `where` it is not."""
        self._n_values += 1
        if self._n_values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise TemplateError(
                f"{where} is nested more than {_MAX_DEPTH} deep or holds more than {_MAX_VALUES} values"
            )
        if isinstance(value, str):
            self.size += len(value)
            return str(value)
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
            return int(value)
        if isinstance(value, (list, tuple)):
            return [self.copy(item, where, depth + 1) for item in value]
        if isinstance(value, Mapping):
            self.size += len(value)
            return {self._key(key, where): self.copy(item, where, depth + 1) for key, item in value.items()}
        raise TemplateError(
            f"{where} holds a value of type {type(value).__name__}; a chat template takes plain JSON values"
        )

    def _key(self, key: Any, where: str) -> str:
        if not isinstance(key, str):
            raise TemplateError(f"{where} has the key {key!r}, which must be a string")
        self.size += len(key)
        return str(key)
