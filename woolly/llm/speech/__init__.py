"""Speech-to-text: windows of an audio clip, decoding, segments, word timestamps."""

from typing import TYPE_CHECKING

from woolly.later import later

if TYPE_CHECKING:
    from woolly.llm.speech.frames import FrameTranscriber
    from woolly.llm.speech.options import TranscribeOptions
    from woolly.llm.speech.steps import Ask, Transcribing, next_step
    from woolly.llm.speech.tokens import SpeechTokens
    from woolly.llm.speech.transcriber import Transcriber
    from woolly.llm.speech.transcript import SpokenSegment, SpokenWord, Transcript
    from woolly.llm.speech.words import Aligner

__all__ = [
    "Aligner",
    "Ask",
    "FrameTranscriber",
    "SpeechTokens",
    "SpokenSegment",
    "SpokenWord",
    "TranscribeOptions",
    "Transcriber",
    "Transcribing",
    "Transcript",
    "next_step",
]

__getattr__ = later(
    __name__,
    {
        "frames": "FrameTranscriber",
        "options": "TranscribeOptions",
        "steps": "Ask Transcribing next_step",
        "tokens": "SpeechTokens",
        "transcriber": "Transcriber",
        "transcript": "SpokenSegment SpokenWord Transcript",
        "words": "Aligner",
    },
)
