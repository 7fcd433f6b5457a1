"""Models: one file per `general.architecture`, with the computation in the order of the paper."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.models.params import TransformerParams
    from woolly.models.registry import (
        TracedEncoder,
        architectures,
        draft_tensors,
        is_block,
        is_head,
        trace,
        trace_draft,
        trace_encoder,
        trace_head,
        transcribes,
    )

__all__ = [
    "TracedEncoder",
    "TransformerParams",
    "architectures",
    "draft_tensors",
    "is_block",
    "is_head",
    "trace",
    "trace_draft",
    "trace_encoder",
    "trace_head",
    "transcribes",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "params": "TransformerParams",
        "registry": "TracedEncoder architectures draft_tensors is_block is_head trace trace_draft trace_encoder"
        " trace_head transcribes",
    },
)
