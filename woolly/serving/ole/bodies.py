"""What Ole sends: OpenAI's fields, with a prompt, a session, and names of its own for two of them."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from woolly.serving.openai.messages import Message
from woolly.serving.openai.schema import ChatRequest, CompletionRequest, refuse
from woolly.serving.parameters import Items

__all__ = ["InferenceBody", "validated"]

Body = TypeVar("Body", bound=BaseModel)

# Ole's names, and what the same is called elsewhere.
_ALIASES = {"repetition_penalty": "repeat_penalty", "stop_sequences": "stop"}


class InferenceBody(ChatRequest):
    """`repetition_penalty` is `repeat_penalty`, `stop_sequences` is `stop`; else as in /v1/chat/completions."""

    messages: Items[Message] | None = Field(  # type: ignore[assignment]
        default=None, min_length=1, description="A conversation to answer, or what is new of one with session_id."
    )
    prompt: str | None = Field(default=None, description="A text to continue; in a chat, what the user says.")
    repetition_penalty: float | None = None
    stop_sequences: Items[str] | None = None
    session_id: str | None = Field(default=None, description="The session that goes on with these messages.")

    def sent(self, *, chat: bool) -> list[Message] | None:
        """The messages to answer, or None where a prompt is to be continued."""
        if (self.prompt is None) == (self.messages is None):
            raise refuse("prompt", "send either a prompt or messages")
        if self.messages is not None:
            return self.messages
        if chat or self.session_id is not None:
            return [Message.model_validate({"role": "user", "content": self.prompt})]
        return None

    def as_chat(self, messages: list[Message], model: str | None) -> ChatRequest:
        """The same in OpenAI's words, about these messages."""
        return validated(ChatRequest, {**self._fields(model), "messages": messages})

    def as_completion(self) -> CompletionRequest:
        """The same in OpenAI's words, about the prompt; fields of chats are refused by name."""
        return validated(CompletionRequest, {**self._fields(self.model), "prompt": self.prompt})

    def _fields(self, model: str | None) -> dict[str, Any]:
        own = {"messages", "prompt", "session_id", "model", *_ALIASES}
        fields = self.model_dump(exclude=own, exclude_none=True, by_alias=True)
        for ours, theirs in _ALIASES.items():
            value = getattr(self, ours)
            if value is not None and theirs in fields:
                raise refuse(ours, f"it means the same as {theirs}; send one of them")
            if value is not None:
                fields[theirs] = value
        return fields if model is None else {**fields, "model": model}


def validated(kind: type[Body], fields: Any) -> Body:
    """A body of JSON that did not come as one; what is wrong with it is told as if it had."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(
            [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        ) from None
