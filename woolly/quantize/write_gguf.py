"""Writer of quantized files."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly import _native
from woolly.errors import GGUFError, RequestError
from woolly.gguf import GGUFFile, GGUFWriter
from woolly.gguf.values import ValueType
from woolly.quantize.imatrix_file import ImportanceMatrix
from woolly.quantize.recipe import Change, Recipe

Progress = Callable[[int, int], None]

# Bytes converted per chunk; limits memory use and sets the granularity of progress reports.
_SLAB = 1 << 23
# Version of the quantization formats, unchanged since 2023.
_QUANTIZATION_VERSION = 2
_FAULTS = {1: "a number that is infinite or not a number", 2: "a number that is too large for this type"}


@dataclass(frozen=True)
class Summary:
    """Summary of a quantization."""

    path: Path
    n_bytes: int  # file size
    types: dict[str, int]  # number of tensors per type
    seconds: float


def quantize_file(
    source: GGUFFile,
    recipe: Recipe,
    path: str | os.PathLike[str],
    *,
    threads: int,
    progress: Progress | None = None,
    imatrix: ImportanceMatrix | None = None,
) -> Summary:
    """Write `source` with the types of the recipe, through a temporary file in the folder of `path`.

    The result is a single file with the metadata of `source`, except for `general.file_type`,
    `general.quantization_version` and the keys of split files. `progress(done, total)` counts bytes of the source. If
    `imatrix` is set, scales depend on the importance of columns, and the keys `quantize.imatrix.*` identify the matrix.
    """
    start = time.perf_counter()
    target = Path(path)
    write_file(source, recipe, target, threads, progress, imatrix, {}, has_metadata=True)
    types = Counter(change.type.name for change in recipe.changes)
    return Summary(target, target.stat().st_size, dict(types.most_common()), time.perf_counter() - start)


def write_file(
    source: GGUFFile,
    recipe: Recipe,
    target: Path,
    threads: int,
    progress: Progress | None,
    imatrix: ImportanceMatrix | None,
    split: Mapping[str, int],
    *,
    has_metadata: bool,
) -> None:
    """Write one file with the tensors of the recipe, the keys of `split`, and the metadata if `has_metadata`.

    As in llama.cpp, `split.tensors.count` is signed and the other keys of split files are 16-bit integers.
    """
    if any(target.exists() and target.samefile(own) for own in source.paths):
        raise RequestError(f"{target} is the source file; choose another name for the output")
    if not 1 <= threads <= 1024:
        raise RequestError(f"threads is {threads}; expected 1 to 1024")
    writer = GGUFWriter(target, alignment=source.alignment)
    if has_metadata:
        _add_metadata(writer, source, recipe, imatrix)
    for key, value in split.items():
        writer.add(key, value, ValueType.INT32 if key == "split.tensors.count" else ValueType.UINT16)
    meter = _Meter(recipe.n_bytes_before, progress)
    for change in recipe.changes:
        columns = None if imatrix is None or not change.is_change else imatrix.columns_of(change.tensor)
        parts = _parts(change, threads, meter, columns)
        writer.add_streamed_tensor(change.tensor.name, change.type, change.tensor.shape, parts)
    _check_room(target, writer.n_bytes())
    writer.write()


def _add_metadata(writer: GGUFWriter, source: GGUFFile, recipe: Recipe, imatrix: ImportanceMatrix | None) -> None:
    own = {"general.file_type": recipe.mix.file_type, "general.quantization_version": _QUANTIZATION_VERSION}
    for key in source.metadata:
        if key not in own and not key.startswith(("split.", "quantize.imatrix.")):
            writer.add_raw(key, source.metadata.raw(key))
    for key, value in own.items():
        writer.add(key, value, ValueType.UINT32)
    if imatrix is not None:
        imatrix.add_to(writer)


class _Meter:
    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.done = 0
        self.progress = progress

    def advance(self, n_bytes: int) -> None:
        self.done += n_bytes
        if self.progress is not None:
            self.progress(self.done, self.total)


def _parts(
    change: Change, threads: int, meter: _Meter, importance: NDArray[np.float32] | None
) -> Callable[[], Iterator[NDArray[np.uint8]]]:
    tensor = change.tensor

    def make() -> Iterator[NDArray[np.uint8]]:
        columns = tensor.shape[-1] if tensor.shape else 1
        bytes_per_row = tensor.type.row_bytes(columns)
        # Experts have separate importances, so a chunk never spans two experts.
        n_matrices = 1 if importance is None else len(importance)
        rows = tensor.data.reshape(n_matrices, -1, bytes_per_row)
        step = max(1, _SLAB // bytes_per_row)
        for index, matrix in enumerate(rows):
            for first in range(0, len(matrix), step):
                slab = matrix[first : first + step]
                if change.is_change:
                    own = None if importance is None else importance[index]
                    yield encode_slab(change, slab, threads, own, index * len(matrix) + first)
                else:
                    yield slab.reshape(-1)
                meter.advance(slab.size)

    return make


def encode_slab(
    change: Change, slab: NDArray[np.uint8], threads: int, importance: NDArray[np.float32] | None, first: int
) -> NDArray[np.uint8]:
    """Encode rows of a tensor, from row `first`, in the new type. GGUFError names a row that cannot be encoded."""
    tensor, type = change.tensor, change.type
    columns = tensor.shape[-1]
    out = np.empty(len(slab) * type.row_bytes(columns), np.uint8)
    fault, row = _native.quantize_rows(tensor.type, slab.reshape(-1), columns, type, out, threads, importance)
    if fault:
        raise GGUFError(
            f"{tensor.path}: tensor {tensor.name!r}: row {first + row} has {_FAULTS[fault]}, so it cannot be written"
            f" as {type.name}"
        )
    return out


def _check_room(target: Path, n_bytes: int) -> None:
    """Raise an error if the disk has too little space, before starting the work."""
    try:
        free = shutil.disk_usage(target.parent).free
    except OSError:
        return  # the writer reports the error
    if free < n_bytes:
        raise GGUFError(
            f"{target}: the file takes {-(-n_bytes // 10**6)} MB, but the disk has {free // 10**6} MB free; free some"
            " space or choose another folder"
        )
