"""WHO: one file per `general.architecture`, the paper in reading order."""

from woolly.models.metadata import Keys
from woolly.models.params import TransformerParams
from woolly.models.registry import architectures, trace, trace_draft

__all__ = ["Keys", "TransformerParams", "architectures", "trace", "trace_draft"]
