"""LoRA adapters: conversion from PEFT to GGUF, and merging into a model's weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.convert.conversion_plan import family_of
from woolly.convert.json_files import read_json
from woolly.convert.peft import LoraPair, read_peft
from woolly.convert.source import Computed, Plain
from woolly.convert.tensor_ops import TRANSPOSED
from woolly.convert.tensors import Fragment, map_tensors
from woolly.errors import ModelError, UnsupportedError
from woolly.gguf import GGUFFile, GGUFWriter, Tensor, text_of
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType

_EXPERT = re.compile(r"\.experts\.(\d{1,4})\.")
Halves = tuple[NDArray[np.float32], NDArray[np.float32]]


def convert_lora(folder: Path, base: Path, target: Path, *, dry_run: bool = False) -> int:
    """Convert a PEFT folder to a GGUF adapter for the checkpoint in `base`. Return the number of changed matrices.

    With `dry_run`, check everything but write nothing.
    """
    adapter = read_peft(folder, base)
    family, config = family_of(read_json(base / "config.json"), base)
    keys = family.all_keys(config)
    writer = GGUFWriter(target)
    for key, value in {
        "general.architecture": family.name_for(config),
        "general.type": "adapter",
        "general.name": folder.resolve().name,
        "adapter.type": "lora",
    }.items():
        writer.add(key, value)
    writer.add("adapter.lora.alpha", adapter.alpha, ValueType.FLOAT32)
    experts: dict[str, dict[int, Halves]] = {}
    for stem, pair in adapter.pairs.items():
        # Convert a dummy matrix with the product's shape to find the name and changes of the weight. Experts use the
        # dummy of the first expert.
        shape, number = (pair.b.shape[0], pair.a.shape[1]), _EXPERT.search(stem)
        first = stem if number is None else f"{stem[: number.start(1)]}0{stem[number.end(1) :]}"
        whole = Computed(f"{first}.weight", shape, GGMLType.F32, lambda: np.empty(0, np.float32))
        targets = map_tensors([whole], family, config, keys).targets
        if not targets:
            raise UnsupportedError(
                f"{folder}: the adapter changes {stem!r:.90}, which has no tensor of its own in a GGUF file of this"
                " model; train the adapter without this layer"
            )
        for one in targets:
            piece = one.pieces[0]
            if one.stacked != (number is not None):
                raise UnsupportedError(f"{folder}: the adapter changes {stem!r:.90}, which GGUF stacks with others")
            halves = _halves(pair, piece, f"{folder}: the adapter changes {stem!r:.90}")
            if number is None:
                _add(writer, one.name, halves)
            else:
                experts.setdefault(one.name, {})[int(number[1])] = halves
    for name, found in experts.items():
        _add(writer, name, _stacked(found, int(keys["expert_count"]), folder))
    if not dry_run:
        writer.write()
    return len(adapter.pairs)


def _halves(pair: LoraPair, piece: Fragment, where: str) -> Halves:
    """Return both factors with the changes of their matrix: those of its rows change B, those of its columns A."""
    # PEFT's factors have the layout of a linear layer, also for layers that store the transposed matrix.
    ops = piece.ops[1:] if piece.ops[:1] == (TRANSPOSED,) else piece.ops
    if any(op.floats or not (op.rows or op.columns) for op in ops):
        raise UnsupportedError(f"{where}, which GGUF stores in another form; train the adapter without this layer")
    a = Fragment(Plain(pair.a), tuple(op for op in ops if op.columns)).array(True)
    b = Fragment(Plain(pair.b), tuple(op for op in ops if op.rows)).array(True)
    return a, b if pair.factor == 1.0 else b * np.float32(pair.factor)


def _add(writer: GGUFWriter, name: str, halves: Halves) -> None:
    for half, array in zip("ab", halves, strict=True):
        writer.add_tensor(f"{name}.lora_{half}", array, GGMLType.F32)


def _stacked(found: dict[int, Halves], n: int, folder: Path) -> Halves:
    """Stack the factors of all experts. Experts without an adapter get zeros."""
    usual = next(iter(found.values()))
    shapes = {tuple(half.shape for half in halves) for halves in found.values()}
    if max(found) >= n or len(shapes) > 1:
        raise ModelError(
            f"{folder}: the adapter's experts do not match the checkpoint, or its matrices have different shapes"
        )
    a, b = (np.stack([found[e][i] if e in found else np.zeros_like(usual[i]) for e in range(n)]) for i in (0, 1))
    return a, b


Pairs = dict[str, list[tuple[Tensor, Tensor, float]]]


def merge_lora(model: GGUFFile, adapters: Sequence[tuple[GGUFFile, float]], target: Path, *, threads: int) -> int:
    """Merge adapters with their scales into a model's weights. Return the number of changed tensors.

    A changed tensor keeps its type, so quantized tensors are quantized again.
    """
    pairs: Pairs = {}
    for file, scale in adapters:
        _add_pairs(model, file, scale, pairs)
    writer = GGUFWriter(target, version=model.version or 3, alignment=model.alignment)
    for key in model.metadata:
        if not key.startswith("split."):
            writer.add_raw(key, model.metadata.raw(key))
    for tensor in model.tensors.values():
        if tensor.name in pairs:
            writer.add_streamed_tensor(tensor.name, tensor.type, tensor.shape, _merged(tensor, pairs, threads))
        else:
            writer.add_raw_tensor(tensor.name, tensor.type, tensor.shape, tensor.data)
    writer.write()
    return len(pairs)


def _add_pairs(model: GGUFFile, file: GGUFFile, scale: float, pairs: Pairs) -> None:
    if (text_of(file.metadata, "general.type"), text_of(file.metadata, "adapter.type")) != ("adapter", "lora"):
        raise ModelError(f"{file.path}: the file is not a LoRA adapter (general.type or adapter.type differs)")
    if text_of(file.metadata, "general.architecture") != text_of(model.metadata, "general.architecture"):
        raise ModelError(f"{file.path}: the adapter is for a different architecture than {model.path}")
    alpha: Any = file.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise ModelError(f"{file.path}: adapter.lora.alpha is {alpha!r:.60}; expected a number")
    for name in sorted({name.removesuffix(".lora_a").removesuffix(".lora_b") for name in file.tensors}):
        a, b, base = file.tensors.get(f"{name}.lora_a"), file.tensors.get(f"{name}.lora_b"), model.tensors.get(name)
        if a is None or b is None or base is None or not _fit(a, b, base):
            raise ModelError(f"{file.path}: what it adds to {name!r:.90} does not fit {model.path}")
        pairs.setdefault(name, []).append((a, b, scale * (alpha / a.shape[-2] if alpha else 1.0)))


def _fit(a: Tensor, b: Tensor, base: Tensor) -> bool:
    """Return True if A times B has the shape of a weight, or of each expert of a weight."""
    if not len(a.shape) == len(b.shape) == len(base.shape) in (2, 3):
        return False
    return (*b.shape[:-1], a.shape[-1]) == base.shape and a.shape[:-2] == b.shape[:-2] and a.shape[-2] == b.shape[-1]


def _merged(tensor: Tensor, pairs: Pairs, threads: int) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    def make() -> Iterator[NDArray[np.uint8]]:
        values = tensor.dequantize().astype(np.float32)
        for a, b, factor in pairs[tensor.name]:
            values += np.float32(factor) * (b.dequantize() @ a.dequantize())
        columns = tensor.shape[-1]
        out = np.empty(tensor.n_bytes, np.uint8)
        source = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        fault, _ = _native.quantize_rows(GGMLType.F32, source, columns, tensor.type, out, threads)
        if fault:
            raise ModelError(
                f"{tensor.path}: {tensor.name} with the adapter applied cannot be written as {tensor.type.name}"
            )
        yield out

    return make
