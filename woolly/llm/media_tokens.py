"""Placeholder tokens for images and audio in prompts, and their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from woolly import multimodal

if TYPE_CHECKING:
    from woolly.chat import ChatFormat, Modalities
    from woolly.multimodal import Audio, AudioSettings, Image, Prompt, VisionSettings


def encode_chat(layout: ChatFormat, modalities: Modalities, encode: Callable[[str], Sequence[int]]) -> Prompt:
    """Return the tokens of a conversation, with placeholders for its images and audio."""
    parts: list[str | multimodal.Placeholder] = []
    end = 0
    for index, item in enumerate(layout.media):
        parts.append(layout.text[end : item.start])
        parts += multimodal.make_replacement(item.prepared, modalities.settings_of(item.prepared.kind), index).parts
        end = item.end
    return multimodal.encode_prompt([*parts, layout.text[end:]], encode)


def image_tokens(image: Image, tower: VisionSettings, encode: Callable[[str], Sequence[int]]) -> int:
    """Return the number of context tokens of an image, including markers."""
    return _count(multimodal.image_placeholders(image.size, tower), encode)


def audio_tokens(audio: Audio, settings: AudioSettings, encode: Callable[[str], Sequence[int]]) -> int:
    """Return the number of context tokens of an audio clip, including markers."""
    return _count(multimodal.audio_placeholders(audio, settings), encode)


def _count(replacement: multimodal.PromptReplacement, encode: Callable[[str], Sequence[int]]) -> int:
    return sum(len(encode(part)) if isinstance(part, str) else part.n for part in replacement.parts)
