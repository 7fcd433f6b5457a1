"""WHO: one file per `general.architecture`, the paper in reading order."""

from woolly.models.params import Keys, TransformerParams
from woolly.models.registry import architectures, trace

__all__ = ["Keys", "TransformerParams", "architectures", "trace"]
