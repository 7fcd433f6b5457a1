"""NumPy backend, the reference for every kernel. Importing the op modules registers their functions."""

from woolly.runtime.reference import (
    compressed_attention,
    elements,
    fused,
    indexer,
    moe,
    residual_streams,
    scans,
    text_encoder,
    towers,
)
from woolly.runtime.reference.ops import REFERENCE_OPS
from woolly.runtime.reference.program import ReferenceBackend, ReferenceProgram

__all__ = [
    "REFERENCE_OPS",
    "ReferenceBackend",
    "ReferenceProgram",
    "compressed_attention",
    "elements",
    "fused",
    "indexer",
    "moe",
    "residual_streams",
    "scans",
    "text_encoder",
    "towers",
]
