"""Continuation: a prompt that ends within the assistant's last message, which the answer continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from woolly.chat.message import Message, TextPart
from woolly.errors import RequestError

if TYPE_CHECKING:
    from woolly.chat.reasoning import ReasoningFormat


@dataclass(frozen=True)
class Continuation:
    """Conversation with a marker in place of the text to continue.

    The prompt is cut at the marker instead of at the text, because many templates strip or split the text of a message.
    """

    messages: tuple[Message, ...]
    mark: str
    text: str
    is_reasoning: bool  # the text is unfinished reasoning

    @classmethod
    def of(cls, messages: Sequence[Message], marks: ReasoningFormat | None) -> Continuation:
        """Read the last message. Text that begins with the start marker of reasoning contains reasoning."""
        last = messages[-1]
        if last.role != "assistant" or last.calls:
            what = "holds calls" if last.role == "assistant" else f"is of role {last.role[:40]!r}"
            raise RequestError(
                f"continue_final: the last message {what}; the text of an assistant can be continued",
                field="continue_final",
            )
        text, reasoning, has_ended = last.text, last.reasoning, bool(last.text)
        if isinstance(last.content, tuple):  # joined as paragraphs, as in llama-server
            text = "\n\n".join(part.text for part in last.content if isinstance(part, TextPart))
        if marks is not None and not reasoning and text.lstrip().startswith(marks.start):
            thought, end, text = text.lstrip().removeprefix(marks.start).partition(marks.end)
            reasoning, has_ended, text = thought.strip() if end else thought.lstrip(), bool(end), text.lstrip()
        mark = uuid4().hex
        if reasoning and not has_ended:
            marked = replace(last, content="", reasoning=mark)
            return cls((*messages[:-1], marked), mark, reasoning, True)
        marked = replace(last, content=mark, reasoning=reasoning)
        return cls((*messages[:-1], marked), mark, text, False)

    def is_in(self, rendered: str) -> bool:
        """Return True if the template renders the text to continue."""
        return self.mark in rendered

    def begin(self, prompt: str, marks: ReasoningFormat) -> str:
        """Return a prompt for an answer, followed by the start marker and the reasoning to continue."""
        if marks.is_open(prompt):
            return prompt + self.text
        return f"{prompt}{marks.start}\n{self.text}"

    def cut(self, rendered: str) -> str:
        """Return the prompt up to the end of the text."""
        before, mark, _ = rendered.rpartition(self.mark)
        if not mark:
            what = "the reasoning of the last message" if self.is_reasoning else "the last message"
            raise RequestError(
                f"continue_final: the model's chat template does not show {what}, which cannot be continued then",
                field="continue_final",
            )
        return before + self.text
