"""WHEN: many requests, one step."""

from woolly.engine.engine import Engine
from woolly.engine.params import SamplingParams
from woolly.engine.sequence import FinishReason, Sequence

__all__ = ["Engine", "FinishReason", "SamplingParams", "Sequence"]
