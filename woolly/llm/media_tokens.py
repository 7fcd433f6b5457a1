"""Sight: images and audio of a prompt as the engine takes them, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from woolly import multimodal

if TYPE_CHECKING:
    from woolly.chat import Layout, Modalities
    from woolly.multimodal import Audio, AudioSettings, Image, Prompt, VisionSettings


def encode_layout(layout: Layout, modalities: Modalities, encode: Callable[[str], Sequence[int]]) -> Prompt:
    """Returns a conversation as tokens, and rows of its images and audio among them."""
    parts: list[str | multimodal.Placeholder] = []
    end = 0
    for index, item in enumerate(layout.media):
        parts.append(layout.text[end : item.start])
        parts += multimodal.make_replacement(item.prepared, modalities.settings_of(item.prepared.kind), index).parts
        end = item.end
    return multimodal.encode_prompt([*parts, layout.text[end:]], encode)


def image_tokens(image: Image, tower: VisionSettings, encode: Callable[[str], Sequence[int]]) -> int:
    """Returns how many tokens of a context an image takes, with the marks around it."""
    return _count(multimodal.image_placeholders(image.size, tower), encode)


def audio_tokens(audio: Audio, settings: AudioSettings, encode: Callable[[str], Sequence[int]]) -> int:
    """Returns how many tokens of a context an audio clip takes, with the marks around it."""
    return _count(multimodal.audio_placeholders(audio, settings), encode)


def _count(replacement: multimodal.PromptReplacement, encode: Callable[[str], Sequence[int]]) -> int:
    return sum(len(encode(part)) if isinstance(part, str) else part.n for part in replacement.parts)
