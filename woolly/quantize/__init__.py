"""Quantization: writes a GGUF file with smaller tensor types."""

from woolly.quantize.imatrix_file import ImportanceMatrix, read_imatrix, write_imatrix
from woolly.quantize.mixes import MIXES, Mix, find_mix, find_tensor_type, find_type
from woolly.quantize.recipe import Change, Recipe, is_kept, make_recipe
from woolly.quantize.write_gguf import Summary, quantize_file

__all__ = [
    "MIXES",
    "Change",
    "ImportanceMatrix",
    "Mix",
    "Recipe",
    "Summary",
    "find_mix",
    "find_tensor_type",
    "find_type",
    "is_kept",
    "make_recipe",
    "quantize_file",
    "read_imatrix",
    "write_imatrix",
]
