"""Op table, filled by the methods of the tracer."""

from woolly.plan.ops.attention import AttentionOps
from woolly.plan.ops.basic import BasicOps
from woolly.plan.ops.compressed_attention import CompressingOps
from woolly.plan.ops.indexer import ChoosingOps
from woolly.plan.ops.moe import ExpertOps
from woolly.plan.ops.recurrent import RecurrentOps
from woolly.plan.ops.residual_streams import StreamOps
from woolly.plan.ops.table import OPS, Cost, Load, Op
from woolly.plan.ops.text_encoder import TextOps
from woolly.plan.ops.towers import TowerOps

__all__ = [
    "OPS",
    "AttentionOps",
    "BasicOps",
    "ChoosingOps",
    "CompressingOps",
    "Cost",
    "ExpertOps",
    "Load",
    "Op",
    "RecurrentOps",
    "StreamOps",
    "TextOps",
    "TowerOps",
]
