"""Importance of the input columns of each weight, in llama.cpp's file formats.

For each matrix and column, a file has the sum of squares of the inputs over a calibration text. GGUF files have
`NAME.in_sum2` and `NAME.counts`. The older `.dat` files have means, multiplied by a number of calls.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from woolly.errors import GGUFError, RequestError
from woolly.gguf import GGUFWriter, Tensor, open_gguf
from woolly.gguf.values import ValueType
from woolly.quantize.low_bit_mixes import NEEDS_IMATRIX
from woolly.quantize.recipe import Recipe

_SUMS, _COUNTS = ".in_sum2", ".counts"
# Minimum importance of columns without inputs. If all columns of a block had importance 0, it would lose its scale.
_MIN_IMPORTANCE = np.float32(1e-6)


@dataclass(frozen=True)
class ColumnSums:
    """Squared sums of the input columns of one weight."""

    sums: NDArray[np.float32]  # (matrices, columns): sums of squares; one matrix per expert
    counts: NDArray[np.float32]  # (matrices,): number of summed rows

    def columns(self) -> NDArray[np.float32]:
        """Mean square of each column, relative to its matrix, (matrices, columns); 1 without data."""
        counts = np.maximum(self.counts, 1)[:, None]
        means = self.sums.astype(np.float64) / counts
        whole = means.mean(axis=1, keepdims=True)
        is_seen = (self.counts[:, None] > 0) & (whole > 0)
        shares = np.where(is_seen, means / np.where(is_seen, whole, 1), 1)
        columns: NDArray[np.float32] = np.maximum(shares, _MIN_IMPORTANCE).astype(np.float32)
        return columns


@dataclass(frozen=True)
class ImportanceMatrix:
    """Entries by weight name, and the datasets used to compute them."""

    path: Path
    entries: Mapping[str, ColumnSums]
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_size: int = 0

    def only(self, include: Sequence[str], exclude: Sequence[str]) -> ImportanceMatrix:
        """Return the matrix without entries that are excluded, or not included, by a part of their names."""
        kept = {
            name: entry
            for name, entry in self.entries.items()
            if (not include or any(part in name for part in include)) and not any(part in name for part in exclude)
        }
        return replace(self, entries=kept)

    def columns_of(self, tensor: Tensor) -> NDArray[np.float32] | None:
        """Return the importance of a weight's columns, (matrices, columns), or None if there is no entry.

        RequestError if the shapes differ, because the file was made with another model.
        """
        entry = self.entries.get(tensor.name)
        if entry is None:
            return None
        n_matrices = tensor.shape[0] if len(tensor.shape) == 3 else 1
        expected = (n_matrices, tensor.shape[-1])
        if entry.sums.shape == (1, n_matrices * tensor.shape[-1]):  # older format
            entry = ColumnSums(entry.sums.reshape(expected), np.repeat(entry.counts, n_matrices))
        if entry.sums.shape != expected:
            raise RequestError(
                f"{self.path}: the entry of {tensor.name} has {entry.sums.shape[0]} x {entry.sums.shape[1]} columns,"
                f" but the weight {expected[0]} x {expected[1]}: use an imatrix made with this model"
            )
        return entry.columns()

    def add_to(self, writer: GGUFWriter) -> None:
        """Add the keys `quantize.imatrix.*`, which identify the matrix in a file quantized with it."""
        writer.add("quantize.imatrix.file", self.path.name)
        if self.datasets:
            writer.add("quantize.imatrix.dataset", self.datasets[0])
        writer.add("quantize.imatrix.entries_count", len(self.entries), ValueType.UINT32)
        writer.add("quantize.imatrix.chunks_count", self.n_chunks, ValueType.UINT32)

    def missing(self, recipe: Recipe) -> list[str]:
        """Return the names of weights that the recipe quantizes and that have no entry.

        RequestError if an entry does not match its weight, or is missing for a type that needs it. Token embedding and
        output are exempt, because llama.cpp's files do not contain them.
        """
        out = []
        for change in recipe.changes:
            if not change.is_change or change.type.block_size == 1:
                continue
            if self.columns_of(change.tensor) is None:
                if change.type in NEEDS_IMATRIX and change.tensor.name.startswith("blk."):
                    raise RequestError(
                        f"{self.path} has no entry of {change.tensor.name}, which {change.type.name} needs: use an"
                        " imatrix made with this model"
                    )
                out.append(change.tensor.name)
        return out


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read the matrix from a GGUF file or a file in the older format. Raise RequestError for other files."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise RequestError(f"{file} cannot be read ({error.strerror or error}); expected an imatrix file") from None
    found = _read_gguf(file) if magic == b"GGUF" else _read_legacy(file)
    if not found.entries:
        raise RequestError(f"{file} has no entries; expected an imatrix file")
    for name, entry in found.entries.items():
        if not (np.isfinite(entry.sums).all() and np.isfinite(entry.counts).all()) or (entry.sums < 0).any():
            raise RequestError(f"{file}: the entry of {name} has a number that is not a sum of squares")
    return found


def _read_gguf(path: Path) -> ImportanceMatrix:
    entries: dict[str, ColumnSums] = {}
    with open_gguf(path) as file:
        for name, tensor in file.tensors.items():
            if not name.endswith(_SUMS):
                continue
            weight = name.removesuffix(_SUMS)
            counts = file.tensors.get(weight + _COUNTS)
            if counts is None:
                raise RequestError(f"{path}: {weight} has {_SUMS[1:]} but no {_COUNTS[1:]}; the file is incomplete")
            sums = tensor.dequantize()
            n = counts.n_elements
            if sums.size % max(n, 1) or not n:
                raise RequestError(f"{path}: {weight} has {sums.size} sums and {n} counts, which do not match")
            entries[weight] = ColumnSums(sums.reshape(n, -1).copy(), counts.dequantize().reshape(-1).copy())
        found = file.metadata.get("imatrix.datasets")
        datasets = tuple(map(str, found)) if isinstance(found, Sequence) and not isinstance(found, str) else ()
        chunks, size = (_whole(file.metadata.get(f"imatrix.chunk_{what}")) for what in ("count", "size"))
    return ImportanceMatrix(path, entries, datasets, chunks, size)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _read_legacy(path: Path) -> ImportanceMatrix:
    data = path.read_bytes()
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or at + n > len(data):
            raise RequestError(f"{path} is not an imatrix file, or it is truncated")
        at += n
        return data[at - n : at]

    def number() -> int:
        return int(struct.unpack("<i", take(4))[0])

    entries: dict[str, ColumnSums] = {}
    n_entries = number()
    if not 0 < n_entries < 1 << 20:
        raise RequestError(f"{path} is not an imatrix file; expected GGUF or llama.cpp's older format")
    for _ in range(n_entries):
        try:
            name = take(number()).decode()
        except UnicodeDecodeError:
            raise RequestError(f"{path} is not an imatrix file, or it is truncated") from None
        calls, n_values = number(), number()
        values = np.frombuffer(take(4 * n_values), "<f4")
        # One row has the values of all experts. The weight determines the number of experts.
        entries[name] = ColumnSums(values.reshape(1, -1).copy(), np.array([max(calls, 1)], np.float32))
    n_chunks = 0
    datasets: tuple[str, ...] = ()
    if at < len(data):
        n_chunks = number()
        datasets = (take(number()).decode(errors="replace"),)
    return ImportanceMatrix(path, entries, datasets, n_chunks)


def write_imatrix(matrix: ImportanceMatrix) -> None:
    """Write the matrix as a GGUF file in llama.cpp's format, with entries sorted by name."""
    writer = GGUFWriter(matrix.path)
    writer.add("general.type", "imatrix")
    writer.add("imatrix.datasets", list(matrix.datasets), ValueType.STRING)
    writer.add("imatrix.chunk_count", matrix.n_chunks, ValueType.UINT32)
    writer.add("imatrix.chunk_size", matrix.chunk_size, ValueType.UINT32)
    for name in sorted(matrix.entries):
        entry = matrix.entries[name]
        writer.add_tensor(name + _SUMS, entry.sums)
        writer.add_tensor(name + _COUNTS, entry.counts[:, None])
    try:
        writer.write()
    except OSError as error:
        raise GGUFError(f"{matrix.path} cannot be written ({error.strerror or error})") from None
