"""FORMAT: reading and writing GGUF files, and what the bytes of their tensors mean."""

from woolly.gguf.dequant import dequantize
from woolly.gguf.metadata import Metadata, StringArray
from woolly.gguf.quantize import quantize
from woolly.gguf.reader import GGUFFile, open_gguf
from woolly.gguf.tensor import Tensor
from woolly.gguf.types import GGMLType, ValueType
from woolly.gguf.writer import GGUFWriter, copy_gguf

__all__ = [
    "GGMLType",
    "GGUFFile",
    "GGUFWriter",
    "Metadata",
    "StringArray",
    "Tensor",
    "ValueType",
    "copy_gguf",
    "dequantize",
    "open_gguf",
    "quantize",
]
