"""What an LLM is opened with, checked before its file is."""

from __future__ import annotations

from woolly.errors import RequestError

__all__ = ["check_opening"]


def check_opening(chat_template: str | None, **counts: int | None) -> None:
    """RequestError for a template that is empty, or for a count that is neither None nor at least 1."""
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{name} is {value!r}; a whole number of at least 1 was expected", field=name)
    if chat_template is not None and not (isinstance(chat_template, str) and chat_template.strip()):
        raise RequestError("chat_template is empty; a Jinja template was expected", field="chat_template")
