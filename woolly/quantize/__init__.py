"""FEWER BITS: a GGUF file written again in smaller types."""

from woolly.quantize.files import Summary, quantize_file
from woolly.quantize.mixes import MIXES, Mix, find_mix, find_type
from woolly.quantize.recipe import Change, Recipe, make_recipe

__all__ = [
    "MIXES",
    "Change",
    "Mix",
    "Recipe",
    "Summary",
    "find_mix",
    "find_type",
    "make_recipe",
    "quantize_file",
]
