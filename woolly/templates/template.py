"""Chat templates, which convert a conversation to the text that a model was trained to continue.

A GGUF file contains its template as a Jinja program. `ChatTemplate` runs the template in the sandbox of sandbox.py on a
plain copy of the conversation, so the template can only access data.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from woolly.errors import TemplateError

if TYPE_CHECKING:
    from woolly.templates.sandbox import CompiledTemplate

#: Fallback for files without a template: plain ChatML turns, which most chat models know.
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

#: Limits of a render (see render_budget.py): a constant, a value per character, and a value per pair of
#: messages, because valid templates may read all messages for each message (measured: 50 units per pair), or append
#: all messages to one long string.
WORK, WORK_PER_CHARACTER, WORK_PER_PAIR = 4_000_000, 64, 128
MEMORY, MEMORY_PER_CHARACTER, MEMORY_PER_PAIR = 32 << 20, 64, 4
SECONDS, WORK_PER_SECOND = 5.0, 10_000_000

#: Variables that every template may read. All other variables are specific to a template.
_GIVEN = frozenset(
    [
        "messages",
        "tools",
        "functions",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "date_string",
        "datetime",
    ]
)

_PROBE_SHARE = 16
_PROBE = "woolly-probe"
_MAX_DEPTH = 80
_MAX_VALUES = 2_000_000
_MAX_BITS = 1024


class ChatTemplate:
    """Chat template, compiled once. Thread-safe.

    If `source` is None, the template is `CHATML` and `is_fallback` is true. If a template only accepts message content
    as text, text parts are joined with newlines. If it only accepts parts, text becomes a single part.
    """

    source: str
    is_fallback: bool

    def __init__(self, source: str | None, *, bos_token: str = "", eos_token: str = "") -> None:
        # Jinja is imported with the first template, not with woolly.
        from woolly.templates.sandbox import CompiledTemplate

        if source is not None and not isinstance(source, str):
            raise TemplateError(f"a chat template must be a string, not {type(source).__name__}")
        self.is_fallback = source is None
        self.source = CHATML if source is None else source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._compiled: CompiledTemplate = CompiledTemplate(self.source)
        self._for_tools: ChatTemplate | None = None
        self._taken: dict[tuple[str, ...], bool] = {}
        self._no_tools: list[Any] | None = None
        question = [{"role": "user", "content": _PROBE}]
        takes_text = _PROBE in self._probe(question)
        if not takes_text and self.reads("tools") and _PROBE in self._probe(question, []):
            self._no_tools = []  # the template iterates over the tools without checking for None
            takes_text = True
        shown = self._probe([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        # A template that prints the list as such does not support parts.
        self._takes_parts = _PROBE in shown and "'type'" not in shown and '"type"' not in shown
        self._needs_parts = self._takes_parts and not takes_text

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, bos_token: str, eos_token: str) -> ChatTemplate:
        """Return the template of a GGUF file: `tokenizer.chat_template`, and its `tool_use` variant if there is one."""

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
    def takes_parts(self) -> bool:
        """True if the template renders content that is a list of parts."""
        return self._takes_parts

    @property
    def takes_text(self) -> bool:
        """True if the template renders content that is a string."""
        return not self._needs_parts

    @property
    def for_tools(self) -> ChatTemplate:
        """Template for conversations with tools."""
        return self if self._for_tools is None else self._for_tools

    def reads(self, variable: str) -> bool:
        """Return True if the template has a variable with this name."""
        return variable in self._compiled.variables

    def takes(self, *roles: str) -> bool:
        """Return True if the template renders every message of a conversation with these roles. Cached."""
        if (known := self._taken.get(roles)) is None:
            texts = [f"{_PROBE}-{number}" for number in range(len(roles))]
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
            shown = self._probe([self._fit(message, 1) for message in messages])
            known = self._taken[roles] = all(text in shown for text in texts)
        return known

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
        """Return the prompt for `messages`. `variables` are template variables such as `enable_thinking`.

        Raises TemplateError for tools, documents or variables that the template never reads.
        """
        if tools and self._for_tools is not None:
            return self._for_tools.render(
                messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        check_messages(messages)
        self._check_names(tools=tools, documents=documents, variables=variables)
        intake = _Intake()
        plain = {
            **self._tokens,
            **_defaults(),
            **self._functions(intake.copy(tools, "tools")),
            **{name: intake.copy(value, name) for name, value in variables.items()},
            "messages": [
                self._fit(intake.copy(message, f"message {number}"), number)
                for number, message in enumerate(messages, 1)
            ],
            "tools": self._no_tools if tools is None else intake.copy(tools, "tools"),
            "documents": intake.copy(documents, "documents"),
            "add_generation_prompt": bool(add_generation_prompt),
        }
        given = frozenset([*intake.lists, id(plain["messages"])])
        return self._run(plain, intake.size, given=given)

    def _functions(self, tools: Any) -> dict[str, str]:
        """Return the tools as text. Firefunction's template always reads this variable."""
        if tools:
            return {"functions": json.dumps(tools, ensure_ascii=False, indent=2)}
        return {} if "functions is" in self.source else {"functions": ""}

    def _check_names(self, *, tools: Any, documents: Any, variables: Mapping[str, Any]) -> None:
        """Raise TemplateError for an argument that the template would silently ignore."""
        known = self._compiled.variables
        whose = "this model's chat template"
        if self.is_fallback:
            whose = "this model brings no chat template, and ChatML, which stands in for it,"
        for names, value in ((("tools", "functions"), tools), (("documents",), documents)):
            if value and known.isdisjoint(names):
                raise TemplateError(f"{whose} takes no {names[0]}")
        for name in variables:
            if name not in known:
                # A malicious template may have many long names, so show only a few short ones.
                switches = sorted(switch for switch in known - _GIVEN if len(switch) <= 40)
                near = difflib.get_close_matches(name[:40], switches, n=1)
                hint = ", ".join(map(repr, switches[:8])) or "none"
                remedy = f"did you mean {near[0]!r}?" if near else f"those that it takes: {hint}"
                raise TemplateError(f"{whose} takes no variable {name[:40]!r}; {remedy}")

    def _run(self, plain: dict[str, Any], size: int, share: int = 1, given: frozenset[int] = frozenset()) -> str:
        from woolly.templates.render_budget import Budget

        n_messages = len(plain["messages"])
        work = (WORK + WORK_PER_CHARACTER * size + WORK_PER_PAIR * n_messages**2) // share
        memory = (MEMORY + (MEMORY_PER_CHARACTER + MEMORY_PER_PAIR * n_messages) * size) // share
        return self._compiled.render(plain, Budget(work, memory, SECONDS / share + work / WORK_PER_SECOND, given))

    def probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        begins_answer: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for a tiny conversation, or "" if the template rejects it. Uses a small budget."""
        plain = [_Intake().copy(message, "message") for message in messages]
        try:
            fitted = [self._fit(message, 1) for message in plain]
        except TemplateError:
            return ""
        return self._probe(fitted, tools, begins_answer=begins_answer, variables=variables)

    def _probe(
        self,
        messages: list[dict[str, Any]],
        tools: Any = None,
        *,
        begins_answer: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for a tiny conversation, or "" if the template rejects it."""
        plain = {
            **self._tokens,
            **_defaults(),
            **(variables or {}),
            **self._functions(tools),
            "messages": messages,
            "tools": self._no_tools if tools is None else tools,
            "documents": None,
            "add_generation_prompt": begins_answer,
        }
        try:
            return self._run(plain, 0, _PROBE_SHARE)
        except TemplateError:
            return ""

    def _fit(self, message: dict[str, Any], number: int) -> dict[str, Any]:
        """Return `message` with its content in the form that the template accepts."""
        content = message.get("content")
        if self.is_fallback and not isinstance(content, (str, list)):
            # An answer may consist of calls only. Other messages need text.
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


def _defaults() -> dict[str, Any]:
    """Return the variables that llama.cpp passes to every template, except `strftime_now` (filters.py)."""
    now = datetime.now()
    return {
        "date_string": now.strftime("%d %b %Y"),
        "datetime": now.strftime("%b %d %Y"),
        "enable_thinking": True,
    }


def check_messages(messages: Any) -> None:
    """Raise TemplateError unless `messages` is a list of mappings with a role."""
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
    """Copies the caller's values to plain data and counts their characters."""

    def __init__(self) -> None:
        self.size = 0
        self.lists: list[int] = []  # ids of copied lists
        self._n_values = 0

    def copy(self, value: Any, where: str, depth: int = 0) -> Any:
        """Return `value` as str, int, float, bool, None, list and dict. Errors for other types name `where`."""
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
            items = [self.copy(item, where, depth + 1) for item in value]
            self.lists.append(id(items))
            return items
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
