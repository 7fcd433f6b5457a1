"""WhisperTranscriber: decoding loop of Whisper over 30 s windows, with temperature fallback.

`steps` yields decode requests and receives their output tokens, so threads, event loops and servers can share it.
Windows, thresholds and seeking are identical to openai-whisper.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from woolly.errors import RequestError
from woolly.multimodal import Audio, EncoderInput, Placeholder, ProcessedItem, Prompt
from woolly.multimodal.audio import DECODE_SEMAPHORE, log_mel_whisper
from woolly.sampling import SamplingParams
from woolly.speech.languages import find_language
from woolly.speech.timestamp_rules import StartProbe, TimestampRules
from woolly.speech.transcriber import DecodeRequest, DecodeSteps
from woolly.speech.transcript import Transcript, TranscriptSegment, TranscriptWord, split_segments
from woolly.speech.word_timestamps import WordAligner, split_words

if TYPE_CHECKING:
    from woolly.engine import Hook
    from woolly.speech.options import TranscribeOptions
    from woolly.speech.whisper_tokens import WhisperTokens
    from woolly.tokens import Tokenizer

_HOP, _WINDOW = 160, 3000  # samples per mel frame, and mel frames per window
_ROW = 0.02  # seconds per encoder row
_TEXT = 448  # decoder positions
_MAX_NEW_TOKENS = _TEXT // 2  # per window
_MAX_PREVIOUS_TOKENS = _TEXT // 2 - 1  # previous text
_COMPRESSION_RATIO_THRESHOLD = 2.4  # above: the text is repetitive
_LOGPROB_THRESHOLD = -1.0  # below: the text is unlikely
_NO_SPEECH_THRESHOLD = 0.6  # above: the window may be silent
_PROMPT_RESET_TEMPERATURE = 0.5  # above: the next window does not use this text as context


@dataclass(frozen=True)
class _DecodingResult:
    tokens: tuple[int, ...]
    text: str
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @property
    def needs_fallback(self) -> bool:
        """True if a higher temperature should be tried. Silence is unlikely text at any temperature."""
        return self.compression_ratio > _COMPRESSION_RATIO_THRESHOLD or (
            self.avg_logprob < _LOGPROB_THRESHOLD and self.no_speech_prob <= _NO_SPEECH_THRESHOLD
        )


class WhisperTranscriber:
    """Transcription of an audio clip."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tokens: WhisperTokens,
        n_mels: int,
        audio: Audio,
        options: TranscribeOptions,
        aligner: WordAligner | None = None,
    ) -> None:
        """Raise RequestError for an unknown language, or for translation by an English-only model.

        An `aligner` adds words with times to the segments.
        """
        self._tokenizer, self._tokens, self._aligner = tokenizer, tokens, aligner
        self._temperatures, self._options = options.temperatures, options
        self.audio = audio
        self._n_mels = n_mels
        if options.translate and not tokens.languages:
            raise RequestError(
                "this model is English-only and cannot translate; open a multilingual model", field="translate"
            )
        self.language: str | None = None if tokens.languages else "en"
        if options.language is not None:
            self.language = find_language(options.language, tuple(tokens.languages) or ("en",))
        self._before: list[int] = []  # previous text as context for the next window
        if options.prompt.strip():
            self._before = tokenizer.encode(" " + options.prompt.strip(), add_special=False, parse_special=False)
        self._segments: list[TranscriptSegment] = []
        self._n_prompt = self._n_output = 0

    @property
    def transcript(self) -> Transcript:
        """Transcript so far."""
        segments = tuple(self._segments)
        return Transcript(segments, self.language or "", self.audio.seconds, self._n_prompt, self._n_output)

    def steps(self) -> DecodeSteps:
        """Yield decode requests, and the segments of each window when it is decoded."""
        samples = self.audio.samples
        n_frames = len(samples) // _HOP
        if not n_frames:
            raise RequestError("the audio is shorter than 10 ms; send a longer clip", field="audio")
        with DECODE_SEMAPHORE:
            frames = log_mel_whisper(np.pad(samples, (0, _WINDOW * _HOP)), self._n_mels)
        seek = 0
        while seek < n_frames:
            size = min(_WINDOW, n_frames - seek)
            values = np.zeros((_WINDOW, self._n_mels), np.float32)
            values[:size] = frames[seek : seek + size]
            rows = Placeholder(ProcessedItem.of("audio", [EncoderInput(values, (1, 1, _WINDOW))]), 0, 0, _WINDOW // 2)
            decoded = yield from self._decode(rows)
            if decoded.no_speech_prob > _NO_SPEECH_THRESHOLD and decoded.avg_logprob <= _LOGPROB_THRESHOLD:
                seek += size
                continue
            seek += yield from self._segment(decoded, rows, seek, size)

    def _segment(
        self, decoded: _DecodingResult, rows: Placeholder, seek: int, size: int
    ) -> Generator[DecodeRequest | TranscriptSegment, Sequence[int] | None, int]:
        """Yield the segments of a window; return the mel frames until the next window."""
        tokens, first, offset = decoded.tokens, self._tokens.timestamp_begin, seek * _HOP / self.audio.rate
        found, after = split_segments(tokens, first, offset, size)
        spoken = [[token for token in part if token < self._tokens.eot] for *_, part in found]
        words: list[tuple[TranscriptWord, ...]] = [()] * len(found)
        if self._aligner is not None and any(spoken):
            words = yield from self._align(self._aligner, rows, spoken, offset, size)
        for (start, end, part), own, timed in zip(found, spoken, words, strict=True):
            text = self._tokenizer.decode(own)
            if start == end or not text.strip():
                continue
            numbers = decoded.temperature, decoded.avg_logprob, decoded.compression_ratio, decoded.no_speech_prob
            self._segments.append(TranscriptSegment(start, end, text, part, *numbers, seek, timed))
            self._before += part
            yield self._segments[-1]
        if not self._options.condition_on_previous_text or decoded.temperature > _PROMPT_RESET_TEMPERATURE:
            self._before = []
        return after

    def _align(
        self, aligner: WordAligner, rows: Placeholder, spoken: Sequence[Sequence[int]], offset: float, size: int
    ) -> Generator[DecodeRequest, Sequence[int] | None, list[tuple[TranscriptWord, ...]]]:
        """Request the cross-attention of a window's tokens; return the words of each segment."""
        tokens, text = self._tokens, [token for part in spoken for token in part]
        task = self._task()
        hooked, hooks = aligner.hooks()
        yield from self._ask((rows, *task, tokens.no_timestamps, *text, tokens.eot), None, hooks=hooks)
        n_rows = max(1, size // 2)
        times = [offset + _ROW * int(row) for row in aligner.token_starts(hooked, len(task), n_rows)]
        out, at = [], 0
        for part in spoken:
            pieces = [self._tokenizer.token_bytes(token) for token in part]
            out.append(split_words(pieces, times[at : at + len(part) + 1], self.language or ""))
            at += len(part)
        return out

    def _task(self) -> list[int]:
        """Return the start of the prompt: sot, and for multilingual models also language and task."""
        tokens = self._tokens
        if not tokens.languages:
            return [tokens.sot]
        task = tokens.translate if self._options.translate else tokens.transcribe
        return [tokens.sot, tokens.languages[self.language or "en"], task]

    def _decode(self, rows: Placeholder) -> Generator[DecodeRequest, Sequence[int] | None, _DecodingResult]:
        """Decode a window, with temperature fallback."""
        tokens, before = self._tokens, self._before[-_MAX_PREVIOUS_TOKENS:]
        lead = [tokens.sot_prev, *before] if before else []
        probe = StartProbe(tokens)
        if self.language is None:
            yield from self._ask((rows, tokens.sot), probe)
            self.language = probe.language
        if lead or probe.language is None or not tokens.languages:
            yield from self._ask((rows, *lead, tokens.sot), probe)
        prompt = [*lead, *self._task()]
        decoded = None
        for temperature in self._temperatures:
            rules = TimestampRules(tokens, len(prompt))
            written = yield from self._ask((rows, *prompt), rules, temperature, _MAX_NEW_TOKENS)
            own = tuple(token for token in written if token != tokens.eot)
            text = self._tokenizer.decode([token for token in own if token < tokens.eot]).strip()
            data = text.encode()
            compression_ratio = len(data) / len(zlib.compress(data))
            decoded = _DecodingResult(
                own, text, temperature, rules.avg_logprob(written), compression_ratio, probe.no_speech_prob
            )
            if not decoded.needs_fallback:
                break
        assert decoded is not None
        return decoded

    def _ask(
        self,
        prompt: Prompt,
        rule: TimestampRules | StartProbe | None,
        temperature: float = 0.0,
        n: int = 1,
        hooks: Mapping[str | int, Hook] | None = None,
    ) -> Generator[DecodeRequest, Sequence[int] | None, Sequence[int]]:
        params = SamplingParams(
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            max_tokens=n,
            seed=self._options.seed,
            logits_processors=() if rule is None else (rule,),
        )
        written = yield DecodeRequest(prompt, params, hooks)
        assert written is not None
        self._n_prompt += sum(part.n if isinstance(part, Placeholder) else 1 for part in prompt) if n > 1 else 0
        self._n_output += len(written) if n > 1 else 0
        return written
