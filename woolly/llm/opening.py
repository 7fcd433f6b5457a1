"""What an LLM is opened with, checked before its file is, and its template."""

from __future__ import annotations

from woolly.engine import LoadedModel
from woolly.errors import RequestError
from woolly.llm.model_options import ModelOptions
from woolly.templates import ChatTemplate

__all__ = ["check_opening", "template_of"]


_COUNTS = (
    "max_running",
    "draft_tokens",
    "chunk",
    "kv_tokens",
)  # other numbers are checked where their limits are known


def check_opening(given: ModelOptions) -> None:
    """RequestError for a template that is empty, or for a count that is neither None nor at least 1."""
    for name in _COUNTS:
        value = getattr(given, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{name} is {value!r}; a whole number of at least 1 was expected", field=name)
    template = given.chat_template
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise RequestError("chat_template is empty; a Jinja template was expected", field="chat_template")


def template_of(loaded: LoadedModel, chat_template: str | None) -> ChatTemplate:
    """Returns the template that lays out conversations: the given one, or that of the file."""
    ends = (loaded.tokenizer.bos_id, loaded.tokenizer.eos_id)
    bos, eos = ("" if token is None else loaded.tokenizer.token_text(token) for token in ends)
    metadata = loaded.file.metadata if chat_template is None else {"tokenizer.chat_template": chat_template}
    return ChatTemplate.from_metadata(metadata, bos_token=bos, eos_token=eos)
