"""Op table, filled by the methods of the tracer."""

from woolly.plan.ops.attention import AttentionOps
from woolly.plan.ops.basic import BasicOps
from woolly.plan.ops.compressed_attention import CompressedAttentionOps
from woolly.plan.ops.indexer import IndexerOps
from woolly.plan.ops.moe import ExpertOps
from woolly.plan.ops.recurrent import RecurrentOps
from woolly.plan.ops.residual_streams import ResidualStreamOps
from woolly.plan.ops.table import OPS, Cost, Load, Op
from woolly.plan.ops.text_encoder import TextEncoderOps
from woolly.plan.ops.towers import TowerOps

__all__ = [
    "OPS",
    "AttentionOps",
    "BasicOps",
    "CompressedAttentionOps",
    "Cost",
    "ExpertOps",
    "IndexerOps",
    "Load",
    "Op",
    "RecurrentOps",
    "ResidualStreamOps",
    "TextEncoderOps",
    "TowerOps",
]
