"""Transcripts of models that write what they hear: windows of a sound, their tokens, segments and words with times."""

from woolly.llm.speech.frames import FrameTranscriber
from woolly.llm.speech.options import TranscribeOptions
from woolly.llm.speech.steps import Ask, Transcribing
from woolly.llm.speech.transcriber import Transcriber
from woolly.llm.speech.transcript import SpokenSegment, SpokenWord, Transcript

__all__ = [
    "Ask",
    "FrameTranscriber",
    "SpokenSegment",
    "SpokenWord",
    "TranscribeOptions",
    "Transcriber",
    "Transcribing",
    "Transcript",
]
