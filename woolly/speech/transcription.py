"""TranscriptionMixin: transcription methods of LLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from woolly import (
    multimodal,
    speech,  # used as speech.NAME: few models transcribe
)
from woolly.engine import RequestOptions
from woolly.engine import multimodal as encoders  # used as encoders.NAME: most models need no encoder
from woolly.errors import KeywordError, RequestError

if TYPE_CHECKING:
    from woolly.engine import EngineDriver, LoadedModel, Request
    from woolly.multimodal import Audio
    from woolly.multimodal.audio import AudioSource
    from woolly.speech import DecodeRequest, Transcriber, Transcript, TranscriptSegment, WhisperTokens, WordAligner
    from woolly.tokens import Tokenizer


class TranscriptionMixin:
    """Transcription methods of LLM."""

    tokenizer: Tokenizer
    driver: EngineDriver
    _loaded: list[LoadedModel]
    _speech: WhisperTokens | None = None
    _aligner: WordAligner | None = None

    @property
    def transcribes(self) -> bool:
        """True for speech-to-text models: Whisper and Parakeet."""
        return bool(self._loaded) and self._loaded[0].program.plan.transcribes

    @overload
    def transcribe(self, audio: AudioSource, *, stream: Literal[False] = False, **options: Any) -> Transcript: ...

    @overload
    def transcribe(
        self, audio: AudioSource, *, stream: Literal[True], **options: Any
    ) -> Iterator[TranscriptSegment]: ...

    def transcribe(
        self, audio: AudioSource, *, stream: bool = False, **options: Any
    ) -> Transcript | Iterator[TranscriptSegment]:
        """Transcribe audio: a path, the bytes of a file, or an array with its sampling rate, (array, 16000).

        With `stream`, yield segments as soon as they are complete. `language` is a code or a name; by default it is
        detected in the first window. `translate` requests a translation into English. `prompt` is text before the
        audio, whose spelling and style the model continues. `temperature` applies to all windows; by default it is 0
        and rises if the text of a window is repetitive or unlikely. With `condition_on_previous_text=False`, windows do
        not use earlier text as context. `seed` applies to temperatures above 0. `word_timestamps` adds words with times
        to the segments; Parakeet models always add them.
        """
        transcriber = self.new_transcriber(multimodal.read_audio(audio), **options)
        segments = self._transcribed(transcriber)
        if stream:
            return segments
        for _ in segments:
            pass
        return transcriber.transcript

    def new_transcriber(self, audio: Audio, **options: Any) -> Transcriber:
        """Return the transcriber of an audio clip; raise RequestError if the model or an option does not support it."""
        if not self.transcribes:
            raise RequestError(
                "this is not a speech-to-text model; open a Whisper or Parakeet model, or send audio in a chat to a"
                " model that supports audio",
                field="model",
                code="wrong_model",
                names=(),
            )
        source = self._loaded[0].source
        assert isinstance(source, encoders.AudioEncoder) and source.audio is not None
        names = speech.TranscribeOptions.__annotations__
        for name in options.keys() - names.keys():
            raise KeywordError(
                f"unknown option {name!r} of transcribe; expected one of {', '.join(names)} and stream", field=name
            )
        chosen = speech.TranscribeOptions(**options)
        if source.decoder is not None:
            steps = self._loaded[0].program.running_plan.steps
            encoder_step = next(i for i, step in enumerate(steps) if step.op == "scatter_rows")
            n_mels = source.audio.n_mels
            return speech.ParakeetTranscriber(self.tokenizer, source.decoder, n_mels, encoder_step, audio, chosen)
        self._speech = self._speech or speech.WhisperTokens.of(self.tokenizer)
        if chosen.word_timestamps and self._aligner is None:
            self._aligner = speech.WordAligner(self._loaded[0], is_english=not self._speech.languages)
        aligner = self._aligner if chosen.word_timestamps else None
        return speech.WhisperTranscriber(self.tokenizer, self._speech, source.audio.n_mels, audio, chosen, aligner)

    def decode_request(self, asked: DecodeRequest, options: RequestOptions | None = None) -> Request:
        """Return the engine request for a decode request, without queueing it."""
        options = replace(options or RequestOptions(), hooks=asked.hooks)
        return self.driver.engine.new_request(asked.prompt, asked.params, options)

    def _transcribed(self, transcriber: Transcriber) -> Iterator[TranscriptSegment]:
        steps = transcriber.steps()
        written: Sequence[int] | None = None
        while (step := speech.next_step(steps, written)) is not None:
            written = None
            if isinstance(step, speech.TranscriptSegment):
                yield step
                continue
            (done,) = self.driver.complete([[self.decode_request(step)]])
            written = done.checked().token_ids
