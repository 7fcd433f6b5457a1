"""DecodeSteps: what a transcriber asks the engine for, and what it yields."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from woolly.llm.speech.transcript import Transcript, TranscriptSegment

if TYPE_CHECKING:
    from woolly.engine import Hook
    from woolly.multimodal import Audio, Prompt
    from woolly.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class DecodeRequest:
    """A prompt with the rows of a window, how its answer is chosen, and what reads values of steps meanwhile."""

    prompt: Prompt
    params: SamplingParams
    hooks: Mapping[str | int, Hook] | None = None


DecodeSteps = Generator[DecodeRequest | TranscriptSegment, Sequence[int] | None, None]


class Transcriber(Protocol):
    """Transcription of one audio clip."""

    @property
    def audio(self) -> Audio:
        """What is heard."""

    @property
    def transcript(self) -> Transcript:
        """What was written so far."""

    def steps(self) -> DecodeSteps:
        """Yields what is to be asked, is sent the tokens of each answer, and yields segments as they are done."""


def next_step(steps: DecodeSteps, written: Sequence[int] | None) -> DecodeRequest | TranscriptSegment | None:
    """Returns the next step; None after the last."""
    try:
        return steps.send(written)
    except StopIteration:
        return None
