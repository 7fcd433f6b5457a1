"""TranscribeOptions: options of `LLM.transcribe`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from woolly.errors import RequestError

# Temperature fallback: tried in order while a window's text is repetitive or unlikely.
FALLBACK_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class TranscribeOptions:
    """Options of a transcription."""

    language: str | None = None  # code or name of the spoken language; None: detect
    translate: bool = False  # translate into English
    prompt: str = ""  # text before the audio, whose spelling and style the model continues
    temperature: float | Sequence[float] | None = None  # None: FALLBACK_TEMPERATURES
    condition_on_previous_text: bool = True  # use the text of earlier windows as context
    word_timestamps: bool = False  # add words with times to the segments
    seed: int | None = None

    def __post_init__(self) -> None:
        """Raise RequestError for a value of the wrong type."""
        wanted = {
            "language": (self.language is None or isinstance(self.language, str), "a code or a name"),
            "translate": (isinstance(self.translate, bool), "True or False"),
            "prompt": (isinstance(self.prompt, str), "text"),
            "condition_on_previous_text": (isinstance(self.condition_on_previous_text, bool), "True or False"),
            "word_timestamps": (isinstance(self.word_timestamps, bool), "True or False"),
        }
        for name, (is_right, what) in wanted.items():
            if not is_right:
                raise RequestError(f"{name} is {getattr(self, name)!r:.60}; expected {what}", field=name)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures to try, in order; raise RequestError for a value outside 0 to 2."""
        given = FALLBACK_TEMPERATURES if self.temperature is None else self.temperature
        several = tuple(given) if isinstance(given, Sequence) else (given,)
        for one in several or (math.nan,):
            if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one <= 2:
                raise RequestError(
                    f"temperature is {self.temperature!r:.60}; expected a number from 0 to 2", field="temperature"
                )
        return several
