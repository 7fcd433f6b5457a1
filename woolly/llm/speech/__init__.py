"""Transcripts of models that write what they hear: windows of 30 s, rules of their tokens, segments with times."""

from woolly.llm.speech.options import TranscribeOptions
from woolly.llm.speech.transcriber import Ask, Transcriber
from woolly.llm.speech.transcript import SpokenSegment, Transcript

__all__ = ["Ask", "SpokenSegment", "TranscribeOptions", "Transcriber", "Transcript"]
