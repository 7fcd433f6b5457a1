"""Tracer: the API of model files. Its methods are the rows of the op table."""

from __future__ import annotations

from woolly.plan.ops import (
    AttentionOps,
    BasicOps,
    CompressedAttentionOps,
    ExpertOps,
    IndexerOps,
    RecurrentOps,
    ResidualStreamOps,
    TextEncoderOps,
    TowerOps,
)


class Tracer(
    BasicOps,
    AttentionOps,
    IndexerOps,
    CompressedAttentionOps,
    ExpertOps,
    RecurrentOps,
    ResidualStreamOps,
    TextEncoderOps,
    TowerOps,
):
    """Records the steps of one model over the tensors of one file, and checks their shapes."""
