"""ParakeetTranscriber: transcription with a Parakeet model; token times are the frames of the encoder.

Audio of up to two minutes is encoded in one run, as in NeMo. For longer audio, the spectrogram is computed once and the
encoder runs over overlapping windows; output rows near the end of a window lack context and are taken from the next
window.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from woolly.errors import RequestError
from woolly.multimodal import Audio, EncoderInput, Placeholder, ProcessedItem
from woolly.multimodal.audio import DECODE_SEMAPHORE, log_mel_nemo
from woolly.multimodal.audio.settings import conv_length
from woolly.sampling import SamplingParams
from woolly.speech.transcriber import DecodeRequest, DecodeSteps
from woolly.speech.transcript import Transcript, TranscriptSegment, TranscriptWord
from woolly.speech.transducer_decoding import TimedToken, TransducerDecoding

if TYPE_CHECKING:
    from woolly.engine.multimodal import TransducerDecoder
    from woolly.speech.options import TranscribeOptions
    from woolly.tokens import Tokenizer

Float32 = npt.NDArray[np.float32]

_HOP, _SUBSAMPLING = 160, 8  # samples per mel frame, and mel frames per encoder row
_WINDOW, _OVERLAP = 12000, 1000  # mel frames per encoder run, and overlap at each end
_SECONDS = 0.08  # per encoder row
_PAUSE = 1.0  # seconds of silence that end a segment
_MAX_SEGMENT_SECONDS = 30.0
_ENDS = (".", "?", "!", "…", "。", "？", "！")
_MARKS = frozenset(mark.encode() for mark in "?'¡¿-:,%/.!")  # punctuation: takes no time


class ParakeetTranscriber:
    """Transcription of an audio clip."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        decoder: TransducerDecoder,
        n_mels: int,
        encoder_step: int,
        audio: Audio,
        options: TranscribeOptions,
    ) -> None:
        """`encoder_step` is the plan step that places encoder rows. Raise RequestError for unsupported options."""
        for name, value in (
            ("language", options.language),
            ("prompt", options.prompt),
            ("translate", options.translate),
        ):
            if value:
                raise RequestError(
                    f"Parakeet models do not support {name}; remove it",
                    field=name,
                )
        if any(options.temperatures) and options.temperature is not None:
            raise RequestError("Parakeet models decode greedily; remove temperature", field="temperature")
        self._tokenizer, self._decoder, self._encoder_step = tokenizer, decoder, encoder_step
        self._options, self._n_mels = options, n_mels
        self.audio = audio
        self.language: str | None = None
        self._words: list[_Word] = []  # words of the open segment
        self._segments: list[TranscriptSegment] = []
        self._n_prompt = self._n_output = 0

    @property
    def transcript(self) -> Transcript:
        """Transcript so far."""
        return Transcript(tuple(self._segments), "", self.audio.seconds, self._n_prompt, self._n_output)

    def steps(self) -> DecodeSteps:
        """Yield decode requests, and segments when they are complete."""
        with DECODE_SEMAPHORE:
            frames = log_mel_nemo(self.audio.samples, self._n_mels)
        if len(frames) < 2:
            raise RequestError("the audio is shorter than 20 ms; send a longer clip", field="audio")
        decoding = TransducerDecoding(self._decoder)
        for first, last, begin, end in _windows(len(frames)):
            rows = yield from self._encode(np.ascontiguousarray(frames[first:last]))
            kept = rows[(begin - first) // _SUBSAMPLING : conv_length(end - first, 3)]
            if not self._options.condition_on_previous_text and begin:
                decoding.reset()
            for token in decoding.decode(kept, is_end=end == len(frames)):
                self._n_output += 1
                yield from self._add(token)
        yield from self._close()

    def _encode(self, frames: Float32) -> Generator[DecodeRequest, Sequence[int] | None, Float32]:
        """Request the encoder rows of a window and ignore the request's output token."""
        n = conv_length(len(frames), 3)
        rows: list[Float32] = []

        def keep(positions: npt.NDArray[np.int32], values: Float32) -> None:
            if not rows:
                rows.append(np.zeros((n, values.shape[1]), np.float32))
            inside = positions < n
            rows[0][positions[inside]] = values[inside]

        rows_of_window = Placeholder(ProcessedItem.of("audio", [EncoderInput(frames, (1, 1, len(frames)))]), 0, 0, n)
        params = SamplingParams(temperature=0.0, max_tokens=1)
        yield DecodeRequest((rows_of_window, self._decoder.blank), params, {self._encoder_step: keep})
        self._n_prompt += n
        return rows[0]

    def _add(self, token: TimedToken) -> Generator[TranscriptSegment, None, None]:
        """Add a token to the open word, or start a new word and yield the segment that it ends."""
        data = self._tokenizer.token_bytes(token.token)
        if token.token in self._tokenizer.control_ids or data in (b"", b"<unk>"):
            return
        words, duration = self._words, self.audio.seconds
        start, end = (min(frame * _SECONDS, duration) for frame in (token.first, token.last))
        if words and data.strip() in _MARKS and self._decoder.kind == "tdt":
            start = end = words[-1].end
        if words and (data[:1] != b" " or not data.strip()):
            words[-1].add(data, end, token)
            return
        if words and self._ends(words, start):
            yield from self._close()
        self._words.append(_Word(data, start, end, token))

    def _ends(self, words: list[_Word], start: float) -> bool:
        """True if a word that begins at `start` belongs to the next segment."""
        last = words[-1]
        return last.text.endswith(_ENDS) or start - last.end >= _PAUSE or start - words[0].start >= _MAX_SEGMENT_SECONDS

    def _close(self) -> Generator[TranscriptSegment, None, None]:
        """Yield the segment of the open words, if any."""
        words, self._words = self._words, []
        if not words:
            return
        tokens = [token for word in words for token in word.tokens]
        spoken = tuple(TranscriptWord(word.text.strip(), word.start, word.end) for word in words)
        mean = sum(token.logprob for token in tokens) / len(tokens)
        ids = tuple(token.token for token in tokens)
        text = "".join(word.text for word in words)
        self._segments.append(
            TranscriptSegment(words[0].start, words[-1].end, text, ids, avg_logprob=mean, words=spoken)
        )
        yield self._segments[-1]


class _Word:
    """Tokens of a word, which begins with a space. A token may end within a UTF-8 character."""

    def __init__(self, data: bytes, start: float, end: float, token: TimedToken) -> None:
        self._data, self.start, self.end, self.tokens = data, start, end, [token]

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "replace")

    def add(self, data: bytes, end: float, token: TimedToken) -> None:
        self._data += data
        self.end = max(self.end, end)
        self.tokens.append(token)


def _windows(n: int) -> list[tuple[int, int, int, int]]:
    """Return (first, last, begin, end) per window: range of encoded mel frames, and range whose rows are used."""
    if n <= _WINDOW:
        return [(0, n, 0, n)]
    out, begin = [], 0
    while begin < n:
        first = max(0, begin - _OVERLAP)
        last = min(n, first + _WINDOW)
        end = n if last == n else last - _OVERLAP
        out.append((first, last, begin, end))
        begin = end
    return out
