"""Tracer: the API of model files. Its methods are the rows of the op table."""

from __future__ import annotations

from woolly.plan.ops import (
    AttentionOps,
    BasicOps,
    ChoosingOps,
    CompressingOps,
    ExpertOps,
    RecurrentOps,
    StreamOps,
    TextOps,
    TowerOps,
)


class Tracer(
    BasicOps, AttentionOps, ChoosingOps, CompressingOps, ExpertOps, RecurrentOps, StreamOps, TextOps, TowerOps
):
    """Records the steps of one model over the tensors of one file, and checks their shapes."""
