"""Request bodies of Ole's API: OpenAI's fields, a prompt, a session, and two aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from woolly.chat import ChatRequest
from woolly.sampling import SamplingParams
from woolly.serving.dialects.completions.bodies import ChatBody, CompletionBody
from woolly.serving.dialects.completions.chat import Form
from woolly.serving.dialects.completions.messages import Message
from woolly.serving.dialects.sampling_parameters import Items
from woolly.serving.errors import invalid_param
from woolly.serving.unknown_fields import body_fields, resolve_unknown_fields

Body = TypeVar("Body", bound=BaseModel)

# Ole's field names and the names in other APIs.
_ALIASES = {"repetition_penalty": "repeat_penalty", "stop_sequences": "stop"}


class InferenceBody(ChatBody):
    """Body of /v1/chat/completions with `repetition_penalty` for `repeat_penalty` and `stop_sequences` for `stop`."""

    messages: Items[Message] | None = Field(  # type: ignore[assignment]
        default=None, min_length=1, description="Messages of a chat; with session_id only the new messages."
    )
    prompt: str | None = Field(default=None, description="Text to complete; in a chat, the user message.")
    repetition_penalty: float | None = None
    stop_sequences: Items[str] | None = None
    session_id: str | None = Field(default=None, description="Session to continue.")

    def sent(self, *, chat: bool) -> list[Message] | None:
        """Return the messages to answer, or None if the prompt is to be completed."""
        if (self.prompt is None) == (self.messages is None):
            raise invalid_param("prompt", "send either a prompt or messages")
        if self.messages is not None:
            return self.messages
        if chat or self.session_id is not None:
            return [Message.model_validate({"role": "user", "content": self.prompt})]
        return None

    def to_chat(
        self, defaults: SamplingParams, messages: Sequence[Message] | None = None, **overrides: Any
    ) -> ChatRequest:
        """Return the body as a ChatRequest, with Ole's aliases resolved."""
        return super().to_chat(defaults, messages, **self._renamed(), **overrides)

    def to_completion(self) -> CompletionBody:
        """Return the body of a text completion. Raises ApiError for chat-only fields."""
        own = {"messages", "session_id", *_ALIASES}
        fields = self.model_dump(exclude=own, exclude_none=True, by_alias=True)
        for name in fields.keys() - body_fields(CompletionBody):
            raise invalid_param(name, "only chats support it; send messages instead of a prompt")
        return validated(CompletionBody, {**fields, **self._renamed()})

    def form(self, session_id: str | None) -> Form:
        """Return the reply options of the body. By default, the last chunk has the usage."""
        form = Form.of(self, **({} if session_id is None else {"session_id": session_id}))
        return replace(form, usage="last") if self.stream_options is None else form

    def _renamed(self) -> dict[str, Any]:
        found = {}
        for ours, theirs in _ALIASES.items():
            if (value := getattr(self, ours)) is not None:
                if getattr(self, theirs) is not None:
                    raise invalid_param(ours, f"a synonym of {theirs}; send only one of them")
                found[theirs] = value
        return found


def validated(kind: type[Body], fields: Any) -> Body:
    """Validate a body that did not come from FastAPI, with the same errors."""
    while True:
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            problems = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
            if not resolve_unknown_fields(fields, problems, body_fields(kind)):
                raise RequestValidationError(problems) from None
