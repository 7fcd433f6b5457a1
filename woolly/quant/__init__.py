"""Quantization: the type table, and decoding and encoding of rows."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.quant.codebooks import codebook_of
    from woolly.quant.decode import can_dequantize, dequantize
    from woolly.quant.encode import quantize
    from woolly.quant.types import GGMLType

__all__ = ["GGMLType", "can_dequantize", "codebook_of", "dequantize", "quantize"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "codebooks": "codebook_of",
        "decode": "can_dequantize dequantize",
        "encode": "quantize",
        "types": "GGMLType",
    },
)
