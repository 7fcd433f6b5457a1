"""TranscribeOptions: options of `LLM.transcribe`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from woolly.errors import RequestError

# Temperature fallback: tried in order while the text of a window repeats itself or is unlikely.
FALLBACK_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class TranscribeOptions:
    """Options of a transcription."""

    language: str | None = None  # spoken language, code or name; None: detected in the first window
    translate: bool = False  # into English
    prompt: str = ""  # text before the audio: the model keeps its spelling and style
    temperature: float | Sequence[float] | None = None  # None: FALLBACK_TEMPERATURES
    condition_on_previous_text: bool = True  # a window reads the text of the windows before it
    word_timestamps: bool = False  # add the words with their times to the segments
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
                raise RequestError(f"{name} is {getattr(self, name)!r:.60}; {what} was expected", field=name)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures to try, in order; RequestError for a value outside 0 to 2."""
        given = FALLBACK_TEMPERATURES if self.temperature is None else self.temperature
        several = tuple(given) if isinstance(given, Sequence) else (given,)
        for one in several or (math.nan,):
            if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one <= 2:
                raise RequestError(
                    f"temperature is {self.temperature!r:.60}; a number from 0 to 2 was expected", field="temperature"
                )
        return several
