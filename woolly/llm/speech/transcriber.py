"""The Transcriber: asks a Whisper model for the text of one window of an audio clip after another.

It runs nothing itself: `steps` yields what is to be asked, and is sent the tokens of the answer. So threads, event
loops and servers share it. Windows, thresholds and seeking are those of the published implementation.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.llm.speech.languages import find_language
from woolly.llm.speech.rules import Rules, StartRow
from woolly.llm.speech.steps import Ask, Steps
from woolly.llm.speech.transcript import SpokenSegment, SpokenWord, Transcript, cut_window
from woolly.llm.speech.words import Aligner, cut_words
from woolly.multimodal import Audio, Piece, Placeholder, Prepared, Prompt
from woolly.multimodal.audio import DECODE_SEMAPHORE, log_mel_whisper
from woolly.sampling import SamplingParams

if TYPE_CHECKING:
    from woolly.engine import Hook
    from woolly.llm.speech.options import TranscribeOptions
    from woolly.llm.speech.tokens import SpeechTokens
    from woolly.tokens import Tokenizer

_HOP, _WINDOW = 160, 3000  # samples of a frame, frames of a window
_ROW = 0.02  # seconds of a row of the encoder
_TEXT = 448  # positions of the decoder
_MAX_NEW_TOKENS = _TEXT // 2  # tokens of a window
_MAX_PREVIOUS_TOKENS = _TEXT // 2 - 1  # tokens of text before it that are read
_REPEATS = 2.4  # a text that compresses by more repeats itself
_UNLIKELY = -1.0  # mean log-probability
_SILENT = 0.6  # probability of silence
_WILD = 0.5  # temperature above which the text is not read by the next window


@dataclass(frozen=True)
class _Decoded:
    tokens: tuple[int, ...]
    text: str
    temperature: float
    mean: float
    repeats: float
    silence: float

    @property
    def is_poor(self) -> bool:
        """Whether another temperature is worth it; silence is unlikely at any."""
        return self.repeats > _REPEATS or (self.mean < _UNLIKELY and self.silence <= _SILENT)


class Transcriber:
    """Transcription of one audio clip."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: SpeechTokens,
        n_mels: int,
        audio: Audio,
        options: TranscribeOptions,
        aligner: Aligner | None = None,
    ) -> None:
        """RequestError for a language that the model lacks, or a translation by one that knows English alone.

        With an `aligner` words have times.
        """
        self._tokenizer, self._tokens, self._aligner = tokenizer, tokens, aligner
        self._temperatures, self._options = options.temperatures, options
        self.audio = audio
        self._n_mels = n_mels
        if options.translate and not tokens.languages:
            raise RequestError("this model knows English alone, so it translates nothing", field="translate")
        self.language: str | None = None if tokens.languages else "en"
        if options.language is not None:
            self.language = find_language(options.language, tuple(tokens.languages) or ("en",))
        self._before: list[int] = []  # tokens that the next window reads
        if options.prompt.strip():
            self._before = tokenizer.encode(" " + options.prompt.strip(), add_special=False, parse_special=False)
        self._segments: list[SpokenSegment] = []
        self._n_prompt = self._n_output = 0

    @property
    def transcript(self) -> Transcript:
        """What was written so far."""
        segments = tuple(self._segments)
        return Transcript(segments, self.language or "", self.audio.seconds, self._n_prompt, self._n_output)

    def steps(self) -> Steps:
        """Yields what is to be asked, and the segments of each window as soon as it is done."""
        samples = self.audio.samples
        n_frames = len(samples) // _HOP
        if not n_frames:
            raise RequestError("the audio is shorter than 10 ms; a longer one was expected", field="audio")
        with DECODE_SEMAPHORE:
            frames = log_mel_whisper(np.pad(samples, (0, _WINDOW * _HOP)), self._n_mels)
        seek = 0
        while seek < n_frames:
            size = min(_WINDOW, n_frames - seek)
            values = np.zeros((_WINDOW, self._n_mels), np.float32)
            values[:size] = frames[seek : seek + size]
            rows = Placeholder(Prepared.of("audio", [Piece(values, (1, 1, _WINDOW))]), 0, 0, _WINDOW // 2)
            decoded = yield from self._decode(rows)
            if decoded.silence > _SILENT and decoded.mean <= _UNLIKELY:
                seek += size
                continue
            seek += yield from self._segment(decoded, rows, seek, size)

    def _segment(
        self, decoded: _Decoded, rows: Placeholder, seek: int, size: int
    ) -> Generator[Ask | SpokenSegment, Sequence[int] | None, int]:
        """Yields the segments of a window; returns how far the next one is."""
        tokens, first, offset = decoded.tokens, self._tokens.first_time, seek * _HOP / self.audio.rate
        found, after = cut_window(tokens, first, offset, size)
        spoken = [[token for token in part if token < self._tokens.end] for *_, part in found]
        words: list[tuple[SpokenWord, ...]] = [()] * len(found)
        if self._aligner is not None and any(spoken):
            words = yield from self._align(self._aligner, rows, spoken, offset, size)
        for (start, end, part), own, timed in zip(found, spoken, words, strict=True):
            text = self._tokenizer.decode(own)
            if start == end or not text.strip():
                continue
            numbers = decoded.temperature, decoded.mean, decoded.repeats, decoded.silence
            self._segments.append(SpokenSegment(start, end, text, part, *numbers, seek, timed))
            self._before += part
            yield self._segments[-1]
        if not self._options.follows or decoded.temperature > _WILD:
            self._before = []
        return after

    def _align(
        self, aligner: Aligner, rows: Placeholder, spoken: Sequence[Sequence[int]], offset: float, size: int
    ) -> Generator[Ask, Sequence[int] | None, list[tuple[SpokenWord, ...]]]:
        """Asks where the decoder looks for each token of a window; returns the words of each of its segments."""
        tokens, text = self._tokens, [token for part in spoken for token in part]
        task = self._task()
        looks, hooks = aligner.hooks()
        yield from self._ask((rows, *task, tokens.no_times, *text, tokens.end), None, hooks=hooks)
        n_rows = max(1, size // 2)
        times = [offset + _ROW * int(row) for row in aligner.begins(looks, len(task), n_rows)]
        out, at = [], 0
        for part in spoken:
            pieces = [self._tokenizer.token_bytes(token) for token in part]
            out.append(cut_words(pieces, times[at : at + len(part) + 1], self.language or ""))
            at += len(part)
        return out

    def _task(self) -> list[int]:
        """The tokens that say what is asked for."""
        tokens = self._tokens
        if not tokens.languages:
            return [tokens.start]
        task = tokens.translate if self._options.translate else tokens.transcribe
        return [tokens.start, tokens.languages[self.language or "en"], task]

    def _decode(self, rows: Placeholder) -> Generator[Ask, Sequence[int] | None, _Decoded]:
        """Asks for the text of a window, at a higher temperature if it is poor."""
        tokens, before = self._tokens, self._before[-_MAX_PREVIOUS_TOKENS:]
        lead = [tokens.before, *before] if before else []
        heard = StartRow(tokens)
        if self.language is None:
            yield from self._ask((rows, tokens.start), heard)
            self.language = heard.language
        if lead or heard.language is None or not tokens.languages:
            yield from self._ask((rows, *lead, tokens.start), heard)
        prompt = [*lead, *self._task()]
        decoded = None
        for temperature in self._temperatures:
            rules = Rules(tokens, len(prompt))
            written = yield from self._ask((rows, *prompt), rules, temperature, _MAX_NEW_TOKENS)
            own = tuple(token for token in written if token != tokens.end)
            text = self._tokenizer.decode([token for token in own if token < tokens.end]).strip()
            data = text.encode()
            repeats = len(data) / len(zlib.compress(data))
            decoded = _Decoded(own, text, temperature, rules.mean(written), repeats, heard.silence)
            if not decoded.is_poor:
                break
        assert decoded is not None
        return decoded

    def _ask(
        self,
        prompt: Prompt,
        rule: Rules | StartRow | None,
        temperature: float = 0.0,
        n: int = 1,
        hooks: Mapping[str | int, Hook] | None = None,
    ) -> Generator[Ask, Sequence[int] | None, Sequence[int]]:
        params = SamplingParams(
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            max_tokens=n,
            seed=self._options.seed,
            logits_processors=() if rule is None else (rule,),
        )
        written = yield Ask(prompt, params, hooks)
        assert written is not None
        self._n_prompt += sum(part.n if isinstance(part, Placeholder) else 1 for part in prompt) if n > 1 else 0
        self._n_output += len(written) if n > 1 else 0
        return written
