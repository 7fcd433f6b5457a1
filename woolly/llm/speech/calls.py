"""TranscriptionMixin: the calls of LLM and AsyncLLM that transcribe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

from woolly import multimodal
from woolly.engine import RequestOptions
from woolly.engine import multimodal as encoders  # its names, as encoders.NAME: most models need none of its files
from woolly.errors import KeywordError, RequestError
from woolly.llm import speech  # its names, as speech.NAME: most models transcribe nothing

if TYPE_CHECKING:
    from woolly.engine import EngineDriver, LoadedModel, Request
    from woolly.llm.speech import Aligner, Ask, SpeechTokens, SpokenSegment, Transcribing, Transcript
    from woolly.multimodal import Audio
    from woolly.multimodal.audio import AudioSource
    from woolly.tokens import Tokenizer


class TranscriptionMixin:
    """The part of LLM that writes what is said in an audio clip."""

    tokenizer: Tokenizer
    driver: EngineDriver
    _loaded: list[LoadedModel]
    _speech: SpeechTokens | None = None
    _aligner: Aligner | None = None

    @property
    def transcribes(self) -> bool:
        """Whether the model writes what it hears, and nothing else: a Whisper or a Parakeet model."""
        return bool(self._loaded) and self._loaded[0].program.plan.transcribes

    @overload
    def transcribe(self, audio: AudioSource, *, stream: Literal[False] = False, **options: Any) -> Transcript: ...

    @overload
    def transcribe(self, audio: AudioSource, *, stream: Literal[True], **options: Any) -> Iterator[SpokenSegment]: ...

    def transcribe(
        self, audio: AudioSource, *, stream: bool = False, **options: Any
    ) -> Transcript | Iterator[SpokenSegment]:
        """Writes what is said in an audio clip: a path, the bytes of a file, or an array with its rate, (array, 16000).

        With `stream`, segments come as soon as the 30 s are done that they are in. `language` is the one that is
        spoken, a code or a name; without it, the model hears which one it is. With `translate` the text is English.
        `prompt` is text that comes before, whose spelling and style are kept. A `temperature` is that of all windows;
        by default it is 0, and rises if a text repeats itself or is too unlikely. With `follows=False` no window reads
        the text of those before it. `seed` is for temperatures above 0. With `words`, segments have the times of their
        words, which those of a Parakeet model always have.
        """
        transcriber = self.prepare_transcript(multimodal.read_audio(audio), **options)
        segments = self._transcribed(transcriber)
        if stream:
            return segments
        for _ in segments:
            pass
        return transcriber.transcript

    def prepare_transcript(self, audio: Audio, **options: Any) -> Transcribing:
        """Returns what transcribes an audio clip; RequestError if the model cannot, or not in that way."""
        if not self.transcribes:
            raise RequestError(
                "this model transcribes nothing by itself; open a Whisper or Parakeet model, or ask one that hears by"
                " chat",
                field="model",
                code="wrong_model",
                names=(),
            )
        source = self._loaded[0].source
        assert isinstance(source, encoders.AudioEncoder) and source.audio is not None
        names = speech.TranscribeOptions.__annotations__
        for name in options.keys() - names.keys():
            raise KeywordError(f"transcribe takes no {name!r}; it takes {', '.join(names)} and stream", field=name)
        chosen = speech.TranscribeOptions(**options)
        if source.decoder is not None:
            steps = self._loaded[0].program.running_plan.steps
            place = next(i for i, step in enumerate(steps) if step.op == "place")
            return speech.FrameTranscriber(self.tokenizer, source.decoder, source.audio.n_mels, place, audio, chosen)
        self._speech = self._speech or speech.SpeechTokens.of(self.tokenizer)
        if chosen.words and self._aligner is None:
            self._aligner = speech.Aligner(self._loaded[0], is_english=not self._speech.languages)
        aligner = self._aligner if chosen.words else None
        return speech.Transcriber(self.tokenizer, self._speech, source.audio.n_mels, audio, chosen, aligner)

    def request_of(self, ask: Ask, options: RequestOptions | None = None) -> Request:
        """Returns the request for a part of a transcript, not queued yet."""
        options = replace(options or RequestOptions(), hooks=ask.hooks)
        return self.driver.engine.new_request(ask.prompt, ask.params, options)

    def _transcribed(self, transcriber: Transcribing) -> Iterator[SpokenSegment]:
        steps = transcriber.steps()
        written: Sequence[int] | None = None
        while (step := speech.next_step(steps, written)) is not None:
            written = None
            if isinstance(step, speech.SpokenSegment):
                yield step
                continue
            (done,) = self.driver.complete([[self.request_of(step)]])
            written = done.checked().token_ids
