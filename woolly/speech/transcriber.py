"""Transcriber: interface between a transcription and the thread or event loop that runs its decode requests."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from woolly.speech.transcript import Transcript, TranscriptSegment

if TYPE_CHECKING:
    from woolly.engine import Hook
    from woolly.multimodal import Audio, Prompt
    from woolly.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """Prompt with the audio of a window, sampling parameters, and hooks for plan steps."""

    prompt: Prompt
    params: SamplingParams
    hooks: Mapping[str | int, Hook] | None = None


DecodeSteps = Generator[DecodeRequest | TranscriptSegment, Sequence[int] | None, None]


class Transcriber(Protocol):
    """Transcription of an audio clip."""

    @property
    def audio(self) -> Audio:
        """Audio to transcribe."""

    @property
    def transcript(self) -> Transcript:
        """Transcript so far."""

    def steps(self) -> DecodeSteps:
        """Yield decode requests and complete segments; `send` passes the output tokens of each request."""


def next_step(steps: DecodeSteps, written: Sequence[int] | None) -> DecodeRequest | TranscriptSegment | None:
    """Send the output tokens of the latest request; return the next step, or None after the last step."""
    try:
        return steps.send(written)
    except StopIteration:
        return None
