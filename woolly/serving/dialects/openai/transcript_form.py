"""TranscriptForm: form fields of a transcription or translation request."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from woolly.serving.errors import invalid_param
from woolly.serving.observability.logs import ignore

# Instructions after the audio, for chat models of all families.
_TRANSCRIBE = (
    "Transcribe this recording word for word, in the language that is spoken. Answer with the transcript alone."
)
_TRANSLATE = "Translate what is said in this recording into English. Answer with the translation alone."

_FIELDS = ("file", "model", "prompt", "language", "temperature", "response_format", "stream")

FORMATS = ("json", "text", "verbose_json")
SUBTITLE_FORMATS = ("srt", "vtt")  # models with timestamps only
_UNSUPPORTED_FORMATS = {
    "srt": "subtitles need timestamps, which this model does not support; Whisper and Parakeet models do",
    "vtt": "subtitles need timestamps, which this model does not support; Whisper and Parakeet models do",
    "diarized_json": "speaker diarization is not supported",
}

_SPEAKERS = "speaker diarization is not supported; leave it out"
_TIMES = "timestamp_granularities"
_UNSUPPORTED = {
    "include": "log-probabilities of transcripts are not supported; leave it out, or use POST /v1/chat/completions",
    "known_speaker_names": _SPEAKERS,
    "known_speaker_references": _SPEAKERS,
    "keywords": "put the words into prompt",
    "languages": "send one language, as language",
}

_LANGUAGE = re.compile(r"[^\W\d_]{2,40}([ -]\w{1,20}){0,4}")
_CODE = re.compile(r"[A-Za-z]{2,3}(-\w+)*")
_SWITCHES = {"true": True, "1": True, "false": False, "0": False, "": False}


@dataclass(frozen=True)
class TranscriptForm:
    """Fields of the form."""

    file: bytes = field(repr=False)
    name: str | None  # file name
    is_translation: bool
    model: str | None = None  # None: the loaded model
    prompt: str = ""  # text before the audio
    language: str | None = None  # spoken language
    temperature: float = 0.0  # OpenAI's default, not the model's
    format: str = "json"
    is_stream: bool = False
    times: tuple[str, ...] = ()  # timestamp_granularities; empty: segments

    @property
    def has_words(self) -> bool:
        """True if the reply has word timestamps."""
        return "word" in self.times

    @property
    def has_segments(self) -> bool:
        """True if the reply has segment timestamps."""
        return not self.times or "segment" in self.times

    @property
    def instruction(self) -> str:
        """Instruction after the audio, for chat models."""
        parts = [_TRANSLATE if self.is_translation else _TRANSCRIBE]
        if self.language is not None:
            is_code = _CODE.fullmatch(self.language) is not None
            code = f"has the ISO 639 code {self.language}" if is_code else f"is {self.language}"
            parts.append(f"The language that is spoken {code}.")
        if self.prompt:
            parts.append(f"Keep to the spelling and the style of this text, which comes before it:\n\n{self.prompt}")
        return " ".join(parts)

    @property
    def shown(self) -> dict[str, Any]:
        """Form without the audio, as recorded by --keep-requests."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "language": self.language,
            "temperature": self.temperature,
            "response_format": self.format,
            "stream": self.is_stream,
            "timestamp_granularities": list(self.times),
            "file": {"filename": self.name, "bytes": len(self.file)},
        }


def read_transcript_form(
    fields: Mapping[str, tuple[str | None, bytes]], *, is_translation: bool = False, has_timestamps: bool = False
) -> TranscriptForm:
    """Return the form. Raises ApiError 400 for an invalid or unsupported field.

    `has_timestamps` is True if the model returns timestamps. Unknown fields are listed in the header x-woolly-ignored.
    """
    texts: dict[str, str] = {}
    times: tuple[str, ...] = ()
    for given, (_, content) in fields.items():
        name = given.removesuffix("[]")  # list syntax of OpenAI's clients
        if name in _FIELDS:
            texts[name] = "" if name == "file" else content.decode("utf-8", "replace")
        elif name == _TIMES and content:
            times = _times(content.decode("utf-8", "replace"), fields, has_timestamps=has_timestamps)
        elif name in _UNSUPPORTED and content:
            raise invalid_param(name, _UNSUPPORTED[name])
        elif content:
            near = difflib.get_close_matches(name[:64], _FIELDS, 1, 0.75)
            ignore(f"{name} (did you mean {near[0]}?)" if near else name)
    if "file" not in fields:
        raise invalid_param("file", "the form has no file; add an audio file")
    name_of_file, file = fields["file"]
    if not file:
        raise invalid_param("file", "empty; expected an audio file")
    form = texts.get("response_format") or "json"
    is_stream = _switch("stream", texts.get("stream", ""))
    known = (*FORMATS, *SUBTITLE_FORMATS) if has_timestamps else FORMATS
    if form not in known:
        why = _UNSUPPORTED_FORMATS.get(form, f"{form[:40]!r} is not supported")
        raise invalid_param("response_format", f"{why}; expected one of {', '.join(known)}")
    if is_stream and form in ("verbose_json", *SUBTITLE_FORMATS):
        raise invalid_param("response_format", f"{form} cannot be streamed; use json, or leave stream out")
    return TranscriptForm(
        file,
        name_of_file,
        is_translation,
        texts.get("model") or None,
        texts.get("prompt", "").strip(),
        _language(texts.get("language", "").strip()),
        _temperature(texts.get("temperature", "")),
        form,
        is_stream,
        times,
    )


def _times(text: str, fields: Mapping[str, tuple[str | None, bytes]], *, has_timestamps: bool) -> tuple[str, ...]:
    """Return the granularities; raise ApiError 400 unless the model and the format support timestamps."""
    wanted = tuple(dict.fromkeys(text.replace(",", " ").split()))
    if not wanted or not set(wanted) <= {"segment", "word"}:
        raise invalid_param(_TIMES, f"expected word, segment or both, but got {text[:40]!r}")
    if not has_timestamps:
        raise invalid_param(
            _TIMES, "this model does not support timestamps; leave it out, or use a Whisper or Parakeet model"
        )
    if fields.get("response_format", (None, b""))[1] != b"verbose_json":
        raise invalid_param(_TIMES, "timestamps need response_format verbose_json")
    return wanted


def _language(text: str) -> str | None:
    if not text:
        return None
    if not _LANGUAGE.fullmatch(text):
        raise invalid_param(
            "language", f"expected a code such as 'de', or the name of a language, but got {text[:40]!r}"
        )
    return text


def _temperature(text: str) -> float:
    try:
        value = float(text or "0")
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise invalid_param("temperature", f"expected a number from 0 to 1, but got {text[:40]!r}")
    return value


def _switch(name: str, text: str) -> bool:
    value = _SWITCHES.get(text.strip().lower())
    if value is None:
        raise invalid_param(name, f"expected true or false, but got {text[:40]!r}")
    return value
