"""Speech-to-text: decoding loops of Whisper and Parakeet, segments and word timestamps."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.speech.options import TranscribeOptions
    from woolly.speech.parakeet import ParakeetTranscriber
    from woolly.speech.transcriber import DecodeRequest, Transcriber, next_step
    from woolly.speech.transcript import Transcript, TranscriptSegment, TranscriptWord
    from woolly.speech.whisper import WhisperTranscriber
    from woolly.speech.whisper_tokens import WhisperTokens
    from woolly.speech.word_timestamps import WordAligner

__all__ = [
    "DecodeRequest",
    "ParakeetTranscriber",
    "TranscribeOptions",
    "Transcriber",
    "Transcript",
    "TranscriptSegment",
    "TranscriptWord",
    "WhisperTokens",
    "WhisperTranscriber",
    "WordAligner",
    "next_step",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "parakeet": "ParakeetTranscriber",
        "options": "TranscribeOptions",
        "transcriber": "DecodeRequest Transcriber next_step",
        "whisper_tokens": "WhisperTokens",
        "whisper": "WhisperTranscriber",
        "transcript": "TranscriptSegment TranscriptWord Transcript",
        "word_timestamps": "WordAligner",
    },
)
