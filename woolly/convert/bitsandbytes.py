"""Checkpoints of bitsandbytes: matrices of 4 bits (NF4, FP4) and of 8 bits (LLM.int8)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.json_files import parse_json
from woolly.convert.repack import q8_0_rows
from woolly.convert.safetensors import StoredTensor
from woolly.convert.source import Computed, Plain, Source
from woolly.errors import ModelError, UnsupportedError
from woolly.quant import GGMLType

Parts = dict[str, StoredTensor]
_PART = re.compile(
    r"(.+)\.(?:weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__(?:nf4|fp4))"
    r"|(SCB|weight_format))"
)
_TYPES = {"bfloat16": GGMLType.BF16, "float16": GGMLType.F16, "float32": GGMLType.F32}


def bitsandbytes_sources(tensors: Mapping[str, StoredTensor]) -> list[Source]:
    """Return the tensors with quantized matrices joined."""
    stems: dict[str, Parts] = {}
    for name, stored in tensors.items():
        if found := _PART.fullmatch(name):
            stems.setdefault(found[1], {})[found[2] or found[3]] = stored
    out: list[Source] = []
    for name, stored in tensors.items():
        stem = name.removesuffix(".weight")
        if _PART.fullmatch(name):
            continue
        if stem == name or stem not in stems:
            out.append(Plain(stored))
            continue
        try:
            out.append(_int8(stored, stems[stem]) if "SCB" in stems[stem] else _four_bits(stored, stems[stem]))
        except KeyError as error:
            raise ModelError(f"tensor {name!r:.90} is quantized, but its {error.args[0]} is missing"[:300]) from None
    if missing := next((stem for stem in stems if f"{stem}.weight" not in tensors), None):
        raise ModelError(f"tensor {missing!r:.90} is quantized, but {missing}.weight is missing"[:300])
    return out


def _four_bits(stored: StoredTensor, parts: Parts) -> Source:
    """Return the values of NF4 and FP4 in the type of the original matrix.

    GGUF has no type with these 16 values in blocks of 64.
    """
    name, where = stored.name, f"tensor {stored.name!r:.90}"
    state_name = next((one for one in parts if one.startswith("quant_state.")), "quant_state")
    state = Hyperparameters(parse_json(parts[state_name].array().tobytes(), f"{where}: the quant_state"), where)
    shape = tuple(state.items("shape", int))
    block, n = state.positive("blocksize"), math.prod(shape)
    packed, codes, scales = (one.array().reshape(-1) for one in (stored, parts["quant_map"], parts["absmax"]))
    type = _TYPES.get(state.text("dtype"), GGMLType.BF16)
    fits = len(shape) == 2 and min(shape) > 0 and packed.nbytes == -(-n // 2) and len(scales) == -(-n // block)
    if not fits or codes.shape != (16,) or codes.dtype != np.float32:
        raise ModelError(f"{where} of shape {shape!r:.40} does not match its quant_state, absmax and quant_map")
    if scales.dtype == np.uint8:
        scales = _unnested(scales, parts, state)
    if scales.dtype != np.float32:
        raise UnsupportedError(f"{where}: absmax is {parts['absmax'].dtype}; expected F32 or U8")

    def values() -> NDArray[np.float32]:
        pairs = packed.view(np.uint8)
        flat = codes[np.stack([pairs >> 4, pairs & np.uint8(15)], axis=1).reshape(-1)[:n]]
        product: NDArray[np.float32] = flat * np.repeat(scales, min(block, n))[:n]
        return product.reshape(shape)

    return Computed.rounded(name, shape, type, values)


def _unnested(scales: NDArray[np.uint8], parts: Parts, state: Hyperparameters) -> NDArray[np.float32]:
    """Return the scales, which double quantization stores in 8 bits."""
    codes, outer = (parts[one].array().reshape(-1) for one in ("nested_quant_map", "nested_absmax"))
    block = state.positive("nested_blocksize")
    if (
        codes.shape != (256,)
        or len(outer) != -(-len(scales) // block)
        or {codes.dtype, outer.dtype} != {np.dtype(np.float32)}
    ):
        raise ModelError(f"{state.where}: nested_absmax and nested_quant_map do not match absmax")
    wide = np.repeat(outer, min(block, len(scales)))[: len(scales)]
    return np.asarray(codes[scales] * wide + np.float32(state.number("nested_offset")), np.float32)


def _int8(stored: StoredTensor, parts: Parts) -> Source:
    """Return rows of 8 bits with one scale per row, as Q8_0 with scales rounded to F16, or as BF16."""
    name, shape = stored.name, stored.shape
    layout = parts["weight_format"].array().reshape(-1).tolist() if "weight_format" in parts else [0]
    scales = Plain(parts["SCB"]).floats().reshape(-1, 1) / np.float32(127)
    if stored.dtype != "I8" or len(shape) != 2 or scales.shape != (shape[0], 1) or layout != [0]:
        raise UnsupportedError(
            f"tensor {name!r:.90} is {stored.dtype} of shape {shape} in layout {layout}; expected int8 rows with a"
            " scale per row"
        )

    def values() -> NDArray[np.float32]:
        product: NDArray[np.float32] = stored.array().astype(np.float32) * scales
        return product

    if shape[1] % 32 or not (scales < 65504).all():
        return Computed.rounded(name, shape, GGMLType.BF16, values)
    halves = scales.astype(np.float16)
    return Computed(name, shape, GGMLType.Q8_0, lambda: q8_0_rows(stored.array(), halves), values)
