"""Writer of GGUF files from conversion plans."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.convert.conversion_plan import ConversionPlan
from woolly.convert.tensors import Target
from woolly.errors import ModelError, RequestError
from woolly.gguf import GGUFWriter
from woolly.gguf.values import ValueType
from woolly.quant import GGMLType
from woolly.quantize import MIXES, Change, ImportanceMatrix, Recipe, find_mix, make_recipe

Progress = Callable[[int, int], None]

# Bytes converted per chunk; limits memory use and sets the granularity of progress reports.
_SLAB = 1 << 23
_QUANTIZATION_VERSION = 2
_FAULTS = {1: "a number that is infinite or not a number", 2: "a number that is too large for this type"}


@dataclass(frozen=True)
class Written:
    """Summary of a conversion: path, size and types."""

    path: Path
    n_bytes: int
    types: dict[str, int]  # number of tensors per type
    seconds: float


def choose_types(plan: ConversionPlan, type_name: str | None, *, has_imatrix: bool = False) -> Recipe:
    """Return the type of each tensor: the checkpoint's type, or a type chosen by a mix of `woolly quantize`."""
    if type_name is not None:
        return make_recipe(plan, find_mix(type_name), has_imatrix=has_imatrix)
    sizes: Counter[GGMLType] = Counter()
    for tensor in plan.tensors.values():
        sizes[tensor.type] += tensor.n_elements
    largest = sizes.most_common(1)[0][0]
    mix = next((mix for mix in MIXES.values() if mix.type is largest), MIXES["F16"])
    return Recipe(mix, tuple(Change(tensor, tensor.type) for tensor in plan.tensors.values()))


def write_draft(
    plan: ConversionPlan,
    recipe: Recipe,
    path: str | os.PathLike[str],
    *,
    threads: int,
    progress: Progress | None = None,
    imatrix: ImportanceMatrix | None = None,
) -> Written:
    """Write a plan with the recipe's types. The file is complete or not written at all.

    Tensors are read one at a time while writing. `progress(done, total)` counts bytes. With `imatrix`, the bytes equal
    those of `woolly quantize --imatrix` on the unquantized checkpoint.
    """
    start, target = time.perf_counter(), Path(path)
    if not 1 <= threads <= 1024:
        raise RequestError(f"threads is {threads}; expected 1 to 1024")
    writer = GGUFWriter(target)
    for key, value in plan.metadata.items():
        writer.add(key, value)
    writer.add("general.file_type", recipe.mix.file_type, ValueType.UINT32)
    writer.add("general.quantization_version", _QUANTIZATION_VERSION, ValueType.UINT32)
    if imatrix is not None:
        imatrix.add_to(writer)
    total, done = recipe.n_bytes_before, 0

    def report(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if progress is not None:
            progress(done, total)

    for change in recipe.changes:
        tensor = change.tensor
        columns = None if imatrix is None or not change.is_change else imatrix.columns_of(tensor)
        parts = _parts(plan.targets[tensor.name], change, threads, report, columns)
        writer.add_streamed_tensor(tensor.name, change.type, tensor.shape, parts)
    try:
        writer.write()
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{plan.path}: cannot join the tensors ({str(error)[:120]})") from error
    types = Counter(change.type.name for change in recipe.changes)
    return Written(target, target.stat().st_size, dict(types.most_common()), time.perf_counter() - start)


def _parts(
    target: Target,
    change: Change,
    threads: int,
    report: Callable[[int], None],
    importance: NDArray[np.float32] | None,
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    type = change.type
    # Rows per importance vector: a piece is one or several complete experts, or a part of a matrix.
    height = 0 if importance is None else math.prod(change.tensor.shape[:-1]) // len(importance)

    def make() -> Iterator[NDArray[np.uint8]]:
        at = 0  # rows of the tensor before this chunk
        for piece in target.pieces:
            columns = piece.shape[-1] if piece.shape else 1  # a vector is one piece
            # Another type is made from the exact values of a tensor that its own type rounds.
            is_exact = change.is_change and getattr(piece.source, "exact", None) is not None
            stored = GGMLType.F32 if is_exact else change.tensor.type
            rows = piece.array(stored is GGMLType.F32).reshape(-1).view(np.uint8).reshape(-1, stored.row_bytes(columns))
            step = max(1, _SLAB // rows.shape[1])
            first = 0
            while first < len(rows):
                n = min(step, len(rows) - first, height - at % height if height else step)
                slab = rows[first : first + n].reshape(-1)
                own = None if importance is None else importance[at // height]
                yield (
                    slab if type is stored else _quantized(piece.source.name, slab, stored, type, columns, threads, own)
                )
                report(n * change.tensor.type.row_bytes(columns))
                first, at = first + n, at + n

    return make


def _quantized(
    name: str,
    slab: NDArray[np.uint8],
    stored: GGMLType,
    type: GGMLType,
    columns: int,
    threads: int,
    importance: NDArray[np.float32] | None,
) -> NDArray[np.uint8]:
    n_rows = slab.size // stored.row_bytes(columns)
    out = np.empty(n_rows * type.row_bytes(columns), np.uint8)
    fault, _ = _native.quantize_rows(stored, slab, columns, type, out, threads, importance)
    if fault:
        raise ModelError(f"tensor {name!r:.90} has {_FAULTS[fault]}, so it cannot be written as {type.name}")
    return out
