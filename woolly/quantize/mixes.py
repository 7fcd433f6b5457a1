"""Quantization mixes by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from woolly import _native
from woolly.errors import RequestError
from woolly.quant import GGMLType


@dataclass(frozen=True)
class Mix:
    """Quantization mix, and its main type."""

    name: str
    file_type: int  # general.file_type
    type: GGMLType
    about: str


MIXES: Mapping[str, Mix] = MappingProxyType(
    {
        mix.name: mix
        for mix in (
            Mix("F32", 0, GGMLType.F32, "32 bits: nothing lost, twice F16's size"),
            Mix("F16", 1, GGMLType.F16, "16 bits, narrow range"),
            Mix("BF16", 32, GGMLType.BF16, "16 bits, float32's range"),
            Mix("Q8_0", 7, GGMLType.Q8_0, "8.5 bits: no loss that one can see"),
            Mix("Q6_K", 18, GGMLType.Q6_K, "6.6 bits: very near to the original"),
            Mix("Q5_K_M", 17, GGMLType.Q5_K, "5.7 bits: near; the more sensitive half of some weights in Q6_K"),
            Mix("Q5_K_S", 16, GGMLType.Q5_K, "5.5 bits"),
            Mix("Q5_1", 9, GGMLType.Q5_1, "6 bits, older type"),
            Mix("Q5_0", 8, GGMLType.Q5_0, "5.5 bits, older type"),
            Mix("Q4_K_M", 15, GGMLType.Q4_K, "4.9 bits: the usual choice; the more sensitive weights in Q6_K"),
            Mix("Q4_K_S", 14, GGMLType.Q4_K, "4.6 bits"),
            Mix("IQ4_NL", 25, GGMLType.IQ4_NL, "4.5 bits, uneven steps"),
            Mix("IQ4_XS", 30, GGMLType.IQ4_XS, "4.3 bits, uneven steps"),
            Mix("Q4_1", 3, GGMLType.Q4_1, "5 bits, older type"),
            Mix("Q4_0", 2, GGMLType.Q4_0, "4.5 bits, older type"),
            Mix("Q3_K_L", 13, GGMLType.Q3_K, "4.3 bits: loses much"),
            Mix("Q3_K_M", 12, GGMLType.Q3_K, "3.9 bits: loses much"),
            Mix("Q3_K_S", 11, GGMLType.Q3_K, "3.4 bits: loses very much"),
            Mix("IQ3_M", 27, GGMLType.IQ3_S, "3.7 bits, points of a codebook"),
            Mix("IQ3_S", 26, GGMLType.IQ3_S, "3.4 bits, points of a codebook"),
            Mix("IQ3_XS", 22, GGMLType.IQ3_S, "3.3 bits, points of a codebook"),
            Mix("IQ3_XXS", 23, GGMLType.IQ3_XXS, "3.1 bits, points of a codebook"),
            Mix("Q2_K", 10, GGMLType.Q2_K, "3 bits: for large models in little memory"),
            Mix("IQ2_M", 29, GGMLType.IQ2_S, "2.7 bits; needs an imatrix"),
            Mix("IQ2_S", 28, GGMLType.IQ2_XS, "2.5 bits; needs an imatrix"),
            Mix("IQ2_XS", 20, GGMLType.IQ2_XS, "2.3 bits; needs an imatrix"),
            Mix("IQ2_XXS", 19, GGMLType.IQ2_XXS, "2.1 bits; needs an imatrix"),
            Mix("IQ1_M", 31, GGMLType.IQ1_M, "1.8 bits; needs an imatrix"),
            Mix("IQ1_S", 24, GGMLType.IQ1_S, "1.6 bits; needs an imatrix"),
            Mix("TQ2_0", 37, GGMLType.TQ2_0, "2.1 bits, for models that were trained ternary"),
            Mix("TQ1_0", 36, GGMLType.TQ1_0, "1.7 bits, for models that were trained ternary"),
            Mix("MXFP4_MOE", 38, GGMLType.MXFP4, "4.3 bits for experts, Q8_0 for all else"),
            Mix("NVFP4", 39, GGMLType.NVFP4, "4.5 bits, floats of NVIDIA's GPUs"),
        )
    }
)
# Short names, as used by other tools.
_SHORT = {"Q5_K": "Q5_K_M", "Q4_K": "Q4_K_M", "Q3_K": "Q3_K_M"}


def find_mix(name: str) -> Mix:
    """Return the mix with this name (case-insensitive). RequestError lists similar names."""
    wanted = name.upper()
    wanted = _SHORT.get(wanted, wanted)
    if wanted not in MIXES:
        near = difflib.get_close_matches(wanted, MIXES, n=3)
        known = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(MIXES)}"
        raise RequestError(f"unknown quantization type {name!r}; {known}")
    return MIXES[wanted]


def find_type(name: str, option: str) -> GGMLType:
    """Return the storage type with this name (case-insensitive). RequestError names the option."""
    types = [type.name for type in GGMLType if _native.can_quantize(type)]
    if name.upper() not in types:
        raise RequestError(f"{option} is {name!r}; expected one of {', '.join(types)}")
    return GGMLType[name.upper()]


def find_tensor_type(text: str) -> tuple[re.Pattern[str], GGMLType]:
    """Parse `REGEX=TYPE`, such as attn_v=Q6_K. Raise RequestError if either part is invalid."""
    expression, mark, name = text.rpartition("=")
    if not mark or not expression:
        raise RequestError(f"--tensor-type is {text!r}; expected REGEX=TYPE, such as attn_v=Q6_K")
    try:
        return re.compile(expression), find_type(name, f"the type of --tensor-type {expression}")
    except re.error as error:
        raise RequestError(f"--tensor-type has {expression!r}, which is not a regular expression: {error}") from None
