"""Falcon 7B, 40B, 180B and Falcon 2: Phi 2 with exact GELU. From 40B on, attention has a separate norm."""

from __future__ import annotations

from woolly.models.params import TransformerParams
from woolly.models.phi2 import build_parallel
from woolly.models.phi2 import read as read
from woolly.plan import Tracer


def build(p: Tracer, hp: TransformerParams) -> None:
    """Build the model."""
    build_parallel(p, hp, act="gelu_erf")
