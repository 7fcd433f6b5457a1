"""FILE FORMAT: reading and writing GGUF files."""

from woolly.gguf.described import Described
from woolly.gguf.map import MemoryMap
from woolly.gguf.metadata import Metadata, StringArray, text_of
from woolly.gguf.reader import GGUFFile, open_gguf
from woolly.gguf.tensor import Tensor
from woolly.gguf.writer import GGUFWriter, copy_gguf

__all__ = [
    "Described",
    "GGUFFile",
    "GGUFWriter",
    "MemoryMap",
    "Metadata",
    "StringArray",
    "Tensor",
    "copy_gguf",
    "open_gguf",
    "text_of",
]
