"""Quantization of split models, with one output file per source file."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from woolly.errors import GGUFError
from woolly.gguf import GGUFFile
from woolly.quantize.imatrix_file import ImportanceMatrix
from woolly.quantize.recipe import Recipe
from woolly.quantize.write_gguf import Progress, Summary, write_file


def split_paths(target: Path, n_files: int) -> list[Path]:
    """Return the file names of a split model: OUT-00001-of-00003.gguf and so on."""
    stem = target.name.removesuffix(".gguf")
    return [target.with_name(f"{stem}-{i + 1:05}-of-{n_files:05}.gguf") for i in range(n_files)]


def quantize_split(
    source: GGUFFile,
    recipe: Recipe,
    path: str | os.PathLike[str],
    *,
    threads: int,
    progress: Progress | None = None,
    imatrix: ImportanceMatrix | None = None,
) -> Summary:
    """Quantize like `quantize_file`, but write one file per shard of `source`, with the same tensors.

    The first file has the metadata. If a file cannot be written, the previous files are removed.
    """
    start = time.perf_counter()
    paths = split_paths(Path(path), len(source.paths))
    written: list[Path] = []
    done = 0
    try:
        for number, (own, target) in enumerate(zip(source.paths, paths, strict=True)):
            changes = tuple(change for change in recipe.changes if change.tensor.path == own)
            keys = {"split.no": number, "split.count": len(paths), "split.tensors.count": len(recipe.changes)}
            before = done

            def report(n: int, _: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + n, recipe.n_bytes_before)

            part = Recipe(recipe.mix, changes)
            write_file(source, part, target, threads, report, imatrix, keys, has_metadata=number == 0)
            written.append(target)
            done += part.n_bytes_before
    except BaseException:
        for target in written:
            target.unlink(missing_ok=True)
        raise
    if done != recipe.n_bytes_before:
        raise GGUFError(f"{source.path}: the files do not contain all tensors")
    types = Counter(change.type.name for change in recipe.changes)
    n_bytes = sum(target.stat().st_size for target in paths)
    return Summary(paths[0], n_bytes, dict(types.most_common()), time.perf_counter() - start)
