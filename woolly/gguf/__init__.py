"""Reading and writing of GGUF files."""

from typing import TYPE_CHECKING

from woolly.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from woolly.gguf.keys import Keys
    from woolly.gguf.mapped_file import MemoryMap
    from woolly.gguf.metadata import Metadata, StringArray, text_of
    from woolly.gguf.model_description import ModelDescription
    from woolly.gguf.reader import GGUFFile, open_gguf
    from woolly.gguf.tensor import Tensor
    from woolly.gguf.writer import GGUFWriter, copy_gguf

__all__ = [
    "GGUFFile",
    "GGUFWriter",
    "Keys",
    "MemoryMap",
    "Metadata",
    "ModelDescription",
    "StringArray",
    "Tensor",
    "copy_gguf",
    "open_gguf",
    "text_of",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "keys": "Keys",
        "model_description": "ModelDescription",
        "mapped_file": "MemoryMap",
        "metadata": "Metadata StringArray text_of",
        "reader": "GGUFFile open_gguf",
        "tensor": "Tensor",
        "writer": "GGUFWriter copy_gguf",
    },
)
