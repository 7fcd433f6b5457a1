"""Steps: what a transcriber asks the engine for, and what it yields."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from woolly.llm.speech.transcript import SpokenSegment, Transcript

if TYPE_CHECKING:
    from woolly.engine import Hook
    from woolly.multimodal import Audio, Prompt
    from woolly.sampling import SamplingParams


@dataclass(frozen=True, eq=False)
class Ask:
    """A prompt with the rows of a window, how its answer is chosen, and what reads values of steps meanwhile."""

    prompt: Prompt
    params: SamplingParams
    hooks: Mapping[str | int, Hook] | None = None


Steps = Generator[Ask | SpokenSegment, Sequence[int] | None, None]


class Transcribing(Protocol):
    """Transcription of one audio clip."""

    @property
    def audio(self) -> Audio:
        """What is heard."""

    @property
    def transcript(self) -> Transcript:
        """What was written so far."""

    def steps(self) -> Steps:
        """Yields what is to be asked, is sent the tokens of each answer, and yields segments as they are done."""


def next_step(steps: Steps, written: Sequence[int] | None) -> Ask | SpokenSegment | None:
    """Returns the next step; None after the last."""
    try:
        return steps.send(written)
    except StopIteration:
        return None
