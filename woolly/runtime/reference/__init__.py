"""NumPy backend, the reference for every kernel. Importing the op modules registers their functions."""

from woolly.runtime.reference import choosing, compressing, elements, fused, moe, scans, streams, texts, towers
from woolly.runtime.reference.ops import REFERENCE_OPS
from woolly.runtime.reference.program import ReferenceBackend, ReferenceProgram

__all__ = [
    "REFERENCE_OPS",
    "ReferenceBackend",
    "ReferenceProgram",
    "choosing",
    "compressing",
    "elements",
    "fused",
    "moe",
    "scans",
    "streams",
    "texts",
    "towers",
]
