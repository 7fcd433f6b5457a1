"""Prompts with a marker for each image and audio clip, as in llama-server."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from woolly.chat import ChatFormat, Message, Modalities, ToolChoice
from woolly.chat.media import MediaPlaceholder, find_placeholders, process_media
from woolly.chat.message import AudioPart, ImagePart
from woolly.errors import RequestError
from woolly.multimodal.audio.format import detect_format
from woolly.multimodal.inputs import AudioInput, ImageInput
from woolly.multimodal.urls import read_base64
from woolly.sampling import SamplingParams
from woolly.serving.errors import invalid_param

MARK = "<__media__>"  # llama-server's marker, reported at /props
_FIRST = 16  # base64 characters: 12 bytes identify an audio format


@dataclass(frozen=True)
class MarkedPrompt:
    """Text with a marker for each image and audio clip."""

    text: str
    parts: tuple[ImagePart | AudioPart, ...]


def read_marked(text: str, data: Any) -> MarkedPrompt:
    """Return a prompt with undecoded images and audio. Raises ApiError 400 unless each has a marker."""
    where = "prompt.multimodal_data"
    if not isinstance(data, list) or not all(isinstance(one, str) for one in data):
        raise invalid_param(where, "expected a list of images and audio clips in base64")
    if (n_marks := text.count(MARK)) != len(data):
        raise invalid_param(
            where,
            f"expected one marker {MARK} per image and audio clip, but got {n_marks} markers for {len(data)} items",
        )
    return MarkedPrompt(text, tuple(_part(one, f"{where}.{i}") for i, one in enumerate(data)))


def _part(data: str, where: str) -> ImagePart | AudioPart:
    """Return an audio clip if the data: URL or the first bytes have an audio type, otherwise an image."""
    if data.startswith("data:"):
        if data.startswith(("data:audio/", "data:application/")):  # OGG files may have application/ogg
            return AudioPart(AudioInput(url=data, where=where))
        return ImagePart(ImageInput(url=data, where=where))
    with suppress(RequestError):
        detect_format(read_base64(data[:_FIRST]), "the audio")
        return AudioPart(AudioInput(base64=data, where=where))
    return ImagePart(ImageInput(base64=data, where=where))


def marked_layout(prompt: MarkedPrompt, params: SamplingParams, modalities: Modalities | None) -> ChatFormat:
    """Return the prompt with decoded images and audio. Raises RequestError if decoding fails."""
    items = process_media([Message("user", prompt.parts)], modalities)
    places = (found.span() for found in re.finditer(re.escape(MARK), prompt.text))
    placeholders = tuple(MediaPlaceholder(one, *place) for one, place in zip(items, places, strict=True))
    return _layout(prompt.text, params, placeholders)


def seen_prompt(
    text: str, messages: Sequence[Message], params: SamplingParams, modalities: Modalities | None
) -> ChatFormat:
    """Return a rendered chat with decoded images."""
    items = process_media(messages, modalities)
    return _layout(text, params, find_placeholders(text, items, modalities) if items and modalities is not None else ())


def _layout(text: str, params: SamplingParams, images: Sequence[MediaPlaceholder]) -> ChatFormat:
    """Return the layout of a prompt with a plain text answer."""
    return ChatFormat(text, params, ToolChoice(), None, None, frozenset(), media=tuple(images))
