"""Quantized checkpoints: groups their tensors and converts them to GGUF types without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly.convert.bitsandbytes import bitsandbytes_sources
from woolly.convert.checkpoint import Checkpoint
from woolly.convert.hyperparameters import Hyperparameters
from woolly.convert.repack import (
    exact_f16,
    mxfp4_rows,
    nvfp4_rows,
    q4_0_rows,
    q4_1_rows,
    q5_0_rows,
    q8_0_rows,
    unpack_bits,
)
from woolly.convert.safetensors import StoredTensor
from woolly.convert.source import Computed, Plain, Source
from woolly.errors import ModelError, UnsupportedError
from woolly.quant import GGMLType

Parts = dict[str, StoredTensor]
Maker = Callable[[str, Parts, Hyperparameters], list[Source]]
# AWQ's column order within a word.
_AWQ = np.array([0, 4, 1, 5, 2, 6, 3, 7])
_IGNORED = ("input_scale", "output_scale", "k_scale", "v_scale", "input_global_scale")
_BLOCK = 32


def sources_of(checkpoint: Checkpoint) -> list[Source]:
    """Return a checkpoint's tensors with quantized matrices joined. Raise UnsupportedError for an unknown method."""
    given = checkpoint.raw.get("quantization_config") or checkpoint.raw.get("quantization")
    if given is None:
        inner = checkpoint.raw.get("text_config")
        given = inner.get("quantization_config") if isinstance(inner, dict) else None
    if not isinstance(given, dict):
        return [Plain(stored) for stored in checkpoint.tensors.values()]
    config = Hyperparameters(given, checkpoint.config.where)
    method = config.text("quant_method", "mlx" if "group_size" in given and "quant_method" not in given else "")
    makers = {
        "gptq": (_gptq, ("qweight", "qzeros", "scales", "g_idx")),
        "awq": (_awq, ("qweight", "qzeros", "scales")),
        "mlx": (_mlx, ("weight", "scales", "biases")),
        "fp8": (_fp8, ("weight", "weight_scale_inv", "weight_scale")),
        "compressed-tensors": (
            _compressed,
            ("weight", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx"),
        ),
        "mxfp4": (_mxfp4, ("blocks", "scales")),
        "modelopt": (_modelopt, ("weight", "weight_scale", "weight_scale_2")),
    }
    if method == "bitsandbytes":
        return bitsandbytes_sources(checkpoint.tensors)
    if method not in makers:
        raise UnsupportedError(
            f"{config.where}: quantization method {method!r:.40} is not supported; expected one of"
            f" {', '.join([*makers, 'bitsandbytes'])}"
        )
    make, ends = makers[method]
    return _grouped(checkpoint, make, ends, config)


def _grouped(checkpoint: Checkpoint, make: Maker, ends: tuple[str, ...], config: Hyperparameters) -> list[Source]:
    stems: dict[str, Parts] = {}
    out: list[Source] = []
    for name, stored in checkpoint.tensors.items():
        stem, _, end = name.rpartition(".")
        if make is _mxfp4 and name.endswith(("_blocks", "_scales")):
            stem, _, end = name.rpartition("_")
        if end in _IGNORED:
            continue
        if end in ends:
            stems.setdefault(stem, {})[end] = stored
        else:
            out.append(Plain(stored))
    for stem, parts in stems.items():
        if set(parts) == {"weight"} and parts["weight"].dtype in ("F32", "F16", "BF16"):
            out.append(Plain(parts["weight"]))
            continue
        try:
            out += make(stem, parts, config)
        except KeyError as error:
            raise ModelError(f"tensor {stem!r:.90} is quantized, but {stem}.{error.args[0]} is missing"[:300]) from None
    return out


def _halves(stored: StoredTensor) -> NDArray[np.float16]:
    return exact_f16(Plain(stored).floats(), stored.name)


def _width(name: str, columns: int, groups: int) -> None:
    """Check that group sizes are multiples of a GGUF block."""
    if not groups or columns % groups or (columns // groups) % _BLOCK:
        raise UnsupportedError(
            f"tensor {name!r:.90} has groups of {columns // max(1, groups)} columns; GGUF needs a multiple of {_BLOCK}"
        )


def _signed(stem: str, values: Callable[[], Any], zeros: Any, scales: Any, shape: tuple[int, int]) -> Source:
    """Return (q - z) * s with 4-bit q as Q4_0 if every z is 8, otherwise as Q5_0, which can store all differences."""
    name = f"{stem}.weight"
    _width(name, shape[1], scales.shape[1])
    if (zeros == 8).all():
        return Computed(name, shape, GGMLType.Q4_0, lambda: q4_0_rows(values(), scales))
    wide = np.repeat(zeros, shape[1] // zeros.shape[1], axis=1).astype(np.int16)
    return Computed(name, shape, GGMLType.Q5_0, lambda: q5_0_rows(values().astype(np.int16) - wide + 16, scales))


def _gptq(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    bits = _expect_bits(config, 4, 8)
    words, scales = parts["qweight"], _halves(parts["scales"]).T
    columns, rows = words.shape[0] * 32 // bits, words.shape[1]
    if "g_idx" in parts:
        order = parts["g_idx"].array()
        size = columns // max(1, scales.shape[1])
        if not np.array_equal(order, np.arange(columns) // max(1, size)):
            raise UnsupportedError(
                f"tensor {stem!r:.90} has columns in activation order (desc_act), which GGUF does not support; convert"
                " the original"
            )
    add = 0 if config.text("checkpoint_format", "gptq") == "gptq_v2" else 1
    zeros = unpack_bits(parts["qzeros"].array(), bits).T.astype(np.int16) + add
    values = lambda: unpack_bits(np.ascontiguousarray(words.array().T), bits)  # noqa: E731
    scales = np.ascontiguousarray(scales)
    if bits == 4:
        return [_signed(stem, values, zeros, scales, (rows, columns))]
    name = f"{stem}.weight"
    _width(name, columns, scales.shape[1])
    if (zeros != 128).any():
        raise UnsupportedError(
            f"tensor {name!r:.90} has 8 bits with zero points other than 128, which GGUF does not support; convert the"
            " original BF16 or F16 checkpoint"
        )

    def make() -> NDArray[np.uint8]:
        return q8_0_rows(unpack_bits(np.ascontiguousarray(words.array().T), bits).astype(np.int16) - 128, scales)

    return [Computed(name, (rows, columns), GGMLType.Q8_0, make)]


def _awq(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    _expect_bits(config)
    if config.text("version", "gemm").lower() != "gemm":
        raise UnsupportedError(f"{config.where}: AWQ version {config.text('version')!r:.40} is not supported")
    words, scales = parts["qweight"], _halves(parts["scales"]).T

    def unpacked(stored: StoredTensor) -> NDArray[np.uint8]:
        plain = unpack_bits(stored.array()).reshape(stored.shape[0], -1, 8)
        columns: NDArray[np.uint8] = plain[:, :, _AWQ].reshape(stored.shape[0], -1).T
        return columns

    zeros = unpacked(parts["qzeros"]).astype(np.int16)
    shape = (words.shape[1] * 8, words.shape[0])
    return [_signed(stem, lambda: np.ascontiguousarray(unpacked(words)), zeros, np.ascontiguousarray(scales), shape)]


def _expect_bits(config: Hyperparameters, *known: int) -> int:
    bits: Any = config.get("bits", "w_bit", default=4)
    if bits not in (known or (4,)):
        expected = " or ".join(map(str, known or (4,)))
        raise UnsupportedError(f"{config.where}: weights have {bits!r:.20} bits; expected {expected}")
    return int(bits)


def _mlx(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    _expect_bits(config)
    name, words = f"{stem}.weight", parts["weight"]
    scales, offsets = _halves(parts["scales"]), _halves(parts["biases"])
    shape = (words.shape[0], words.shape[1] * 8)
    _width(name, shape[1], scales.shape[1])
    make = lambda: q4_1_rows(unpack_bits(words.array()), scales, offsets)  # noqa: E731
    return [Computed(name, shape, GGMLType.Q4_1, make)]


def _e4m3() -> NDArray[np.float32]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    values[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


def _fp8(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    """Return values times their block's scale: exact in BF16 if scales are powers of two, otherwise rounded once."""
    stored = parts["weight"]
    name, shape = f"{stem}.weight", stored.shape
    if stored.dtype != "F8_E4M3" or len(shape) != 2:
        raise UnsupportedError(f"tensor {name!r:.90} is {stored.dtype} of shape {shape}; expected a matrix of F8_E4M3")
    scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    factors: NDArray[Any] = Plain(scale).floats().reshape(scale.shape if len(scale.shape) == 2 else (-1, 1))
    counts: list[int] = list(factors.shape)
    sizes = _block(name, shape, counts, config)

    def values() -> NDArray[np.float32]:
        wide = np.repeat(np.repeat(factors, sizes[0], axis=0)[: shape[0]], sizes[1], axis=1)[:, : shape[1]]
        product: NDArray[np.float32] = _e4m3()[stored.array()] * wide
        return product

    return [Computed.rounded(name, shape, GGMLType.BF16, values)]


def _block(name: str, shape: tuple[int, ...], counts: list[int], config: Hyperparameters) -> list[int]:
    """Return the rows and columns of a block with one scale. The last block of a row or column may be partial."""
    known = _block_sizes(config)
    fitting = [sizes for sizes in known if all(-(-n // s) == m for n, s, m in zip(shape, sizes, counts, strict=True))]
    if len(fitting) == 1:
        return list(fitting[0])
    pairs = list(zip(shape, counts, strict=True))
    # A single scale, or a scale per row, needs no block size.
    if all(m in (1, n) for n, m in pairs) or (not known and all(m and n % m == 0 for n, m in pairs)):
        return [n // m for n, m in pairs]
    what = f"tensor {name!r:.90} of shape {shape} has scales of shape {tuple(counts)}"
    if known and not fitting:
        raise ModelError(f"{what}, which do not fit")
    raise UnsupportedError(f"{what}, but {config.where} does not give the block size")


def _block_sizes(config: Hyperparameters) -> set[tuple[int, int]]:
    """Return the block sizes in config.json. compressed-tensors has one per group of layers."""
    named = [config] if config.get("weight_block_size") is not None else []
    key = "weight_block_size"
    if not named:
        key = "block_structure"
        groups = (one.get("weights") for one in config.mapping("config_groups").values() if isinstance(one, dict))
        named = [config.inner(one) for one in groups if isinstance(one, dict) and one.get(key) is not None]
    found = {(rows, columns) for rows, columns in (one.items(key, int, 2) for one in named)}
    if any(size <= 0 for sizes in found for size in sizes):
        raise ModelError(f"{config.where}: {key} has a block size that is not positive")
    return found


def _compressed(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    name = f"{stem}.weight"
    if "weight" in parts and parts["weight"].dtype == "F8_E4M3":
        return _fp8(stem, parts, config)
    if "weight_g_idx" in parts:
        raise UnsupportedError(f"tensor {name!r:.90} has columns in activation order, which GGUF does not support")
    scales = _halves(parts["weight_scale"])
    if "weight" in parts:
        stored = parts["weight"]
        if stored.dtype != "I8" or "weight_zero_point" in parts:
            raise UnsupportedError(
                f"tensor {name!r:.90} is {stored.dtype} with zero points; expected I8 without zero points"
            )
        _width(name, stored.shape[1], scales.shape[1])
        return [Computed(name, stored.shape, GGMLType.Q8_0, lambda: q8_0_rows(stored.array(), scales))]
    packed = parts["weight_packed"]
    shape = tuple(int(n) for n in parts["weight_shape"].array())
    if packed.dtype != "I32" or len(shape) != 2 or packed.shape != (shape[0], -(-shape[1] // 8)):
        raise UnsupportedError(
            f"tensor {name!r:.90} is packed as {packed.dtype} {packed.shape}; expected 4 bits of {shape}"
        )
    zeros = np.full(scales.shape, 8, np.int16)
    if "weight_zero_point" in parts:  # packed along rows
        points = unpack_bits(np.ascontiguousarray(parts["weight_zero_point"].array().T)).T
        zeros = points[: shape[0]].astype(np.int16)
    return [_signed(stem, lambda: unpack_bits(packed.array())[:, : shape[1]], zeros, scales, (shape[0], shape[1]))]


def _mxfp4(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    """Return all experts of a layer. Interleaved rows of gate and up are split."""
    blocks, exponents = parts["blocks"], parts["scales"]
    if (
        blocks.dtype != "U8"
        or exponents.dtype != "U8"
        or blocks.shape[:-1] != exponents.shape
        or blocks.shape[-1] != 16
    ):
        raise ModelError(f"tensor {stem!r:.90} has blocks of shape {blocks.shape} with scales of {exponents.shape}")
    whole = (*blocks.shape[:-2], blocks.shape[-2] * _BLOCK)

    def part(name: str, step: slice, shape: tuple[int, ...]) -> Source:
        make = lambda: mxfp4_rows(blocks.array()[:, step], exponents.array()[:, step])  # noqa: E731
        return Computed(name, shape, GGMLType.MXFP4, make)

    if not stem.endswith("gate_up_proj"):
        return [part(stem, slice(None), whole)]
    half = (whole[0], whole[1] // 2, whole[2])
    base = stem.removesuffix("gate_up_proj")
    return [part(f"{base}gate_proj", slice(0, None, 2), half), part(f"{base}up_proj", slice(1, None, 2), half)]


def _modelopt(stem: str, parts: Parts, config: Hyperparameters) -> list[Source]:
    stored = parts["weight"]
    name = f"{stem}.weight"
    if stored.dtype == "F8_E4M3":
        return _fp8(stem, parts, config)
    scales, factor = parts["weight_scale"], parts["weight_scale_2"]
    shape = (stored.shape[0], stored.shape[1] * 2)
    if stored.dtype != "U8" or scales.dtype != "F8_E4M3" or shape[1] % 64 or scales.shape != (shape[0], shape[1] // 16):
        raise UnsupportedError(
            f"tensor {name!r:.90} is {stored.dtype} of shape {stored.shape} with scales of {scales.shape}; expected"
            " NVFP4 in rows of a multiple of 64"
        )
    make = lambda: nvfp4_rows(stored.array(), scales.array())  # noqa: E731
    value = Plain(factor).floats().reshape(1)
    return [
        Computed(name, shape, GGMLType.NVFP4, make),
        Computed(f"{stem}.scale", (1,), GGMLType.F32, lambda: value),
    ]
