"""Length limits of prompts, checked before tokenization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from woolly.llm.text_ids import CHARACTERS_PER_TOKEN
from woolly.serving.errors import ApiError

# Body fields with images, audio and files, whose characters are not prompt tokens.
_MEDIA_KEYS = frozenset(
    {
        *("image_url", "source", "images", "inlineData", "inline_data", "input_audio", "audio_url"),
        *("file", "file_data", "video_url"),
    }
)


def check_length(what: str, n_tokens: int, most: int) -> None:
    """Raise ApiError 400 if the prompt is longer than `most` tokens."""
    if n_tokens > most:
        raise ApiError(
            400,
            "context_length_exceeded",
            f"the prompt {what}, but the limit is {most} tokens; shorten it",
            param="prompt",
            exceeds=(n_tokens, most),
        )


def check_text(text: str, most: int) -> None:
    """Raise ApiError 400 if a text is certainly longer than `most` tokens."""
    check_length(f"has {len(text)} characters", len(text) // CHARACTERS_PER_TOKEN, most)


def check_characters(values: Iterable[Any], most: int) -> None:
    """Raise ApiError 400 if the strings in JSON values are too long for any prompt, before other work is done.

    Strings slightly over the limit pass; tokenization then gives the exact excess.
    """
    n = _n_characters(values)
    check_length(f"has {n} characters", n // CHARACTERS_PER_TOKEN, most)


def _n_characters(values: Iterable[Any]) -> int:
    """Return the number of characters of all strings in JSON values."""
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
