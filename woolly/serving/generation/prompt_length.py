"""Limits of a prompt's length, checked before it is tokenized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from woolly.llm.text_ids import CHARACTERS_PER_TOKEN
from woolly.serving.errors import ApiError

# Fields that hold images, audio and files in the bodies of dialects: their characters are no tokens.
_MEDIA_KEYS = frozenset(
    {
        *("image_url", "source", "images", "inlineData", "inline_data", "input_audio", "audio_url"),
        *("file", "file_data", "video_url"),
    }
)


def check_length(what: str, n_tokens: int, most: int) -> None:
    """Raise ApiError 400 for a prompt of more tokens than the server takes."""
    if n_tokens > most:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"the prompt {what}, and this server takes at most {most} tokens; shorten it",
            param="prompt",
            exceeds=(n_tokens, most),
        )


def check_text(text: str, most: int) -> None:
    """Raise ApiError 400 if a text is too long for `most` tokens, whatever they are."""
    check_length(f"has {len(text)} characters", len(text) // CHARACTERS_PER_TOKEN, most)


def check_characters(values: Iterable[Any], most: int) -> None:
    """Raise ApiError 400 if the texts among JSON values are too long for any prompt, before work is done for them.

    Texts that are slightly too long pass: tokenizing them shows by how much.
    """
    n = _n_characters(values)
    check_length(f"has {n} characters", n // CHARACTERS_PER_TOKEN, most)


def _n_characters(values: Iterable[Any]) -> int:
    """Return the number of characters of all texts in JSON values."""
    n = 0
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            n += len(value)
        elif isinstance(value, Mapping):
            stack += (one for key, one in value.items() if key not in _MEDIA_KEYS)
        elif isinstance(value, (list, tuple)):
            stack += value
    return n
