"""Writer of embeddings. An interrupted run resumes from a partial file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FORMATS = (".npy", ".jsonl", ".parquet")

_HEAD = 4096  # header size of the partial file, which identifies its output


def check_format(path: Path) -> None:
    """Raise RequestError if the file suffix is not supported, or needs a library that is not installed."""
    if path.suffix.lower() not in FORMATS:
        raise RequestError(f"--output is {path}; expected a name that ends in {', '.join(FORMATS)}")
    if path.suffix.lower() == ".parquet":
        try:
            import_module("pyarrow.parquet")
        except ImportError:
            raise RequestError(
                f"--output: .parquet needs pyarrow: {install_command('parquet')}, or choose .npy or .jsonl"
            ) from None


def identity(texts: Sequence[str], **options: Any) -> dict[str, Any]:
    """Return everything that determines the embeddings. Work is only resumed if nothing has changed."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return {"texts": len(texts), "sha256": digest.hexdigest(), **options}


class EmbeddingsFile:
    """Appends rows to `<output>.part`; `finish` writes the output and removes the partial file."""

    def __init__(self, output: Path, what: Mapping[str, Any], width: int) -> None:
        """Open the partial file. Raise RequestError if texts, model or options differ."""
        self._output = output
        self._part = output.with_name(output.name + ".part")
        self._width = width
        head = json.dumps({**what, "width": width}, sort_keys=True).encode()
        assert len(head) < _HEAD
        head = head.ljust(_HEAD)
        try:
            self._file = self._part.open("r+b" if self._part.exists() else "w+b")
        except OSError as error:
            raise RequestError(f"--output: {self._part} cannot be written ({error.strerror})") from None
        found = self._file.read(_HEAD)
        if len(found) < _HEAD:
            self._file.seek(0)
            self._file.write(head)
        elif found != head:
            self._file.close()
            raise RequestError(
                f"{self._part} belongs to other texts, another model or other options; remove it to start again"
            )
        size = self._file.seek(0, os.SEEK_END) - _HEAD
        self.n_done = max(0, size) // (4 * width)  # an incomplete row is written again
        self._file.truncate(_HEAD + 4 * width * self.n_done)
        self._file.seek(0, os.SEEK_END)

    def append(self, rows: npt.NDArray[np.float32]) -> None:
        """Append rows and flush them."""
        self._file.write(rows.astype("<f4").tobytes())
        self._file.flush()
        self.n_done += len(rows)

    def finish(self, texts: Sequence[str]) -> None:
        """Write the output atomically, in the format of its suffix."""
        import numpy as np

        rows = np.fromfile(self._part, "<f4", offset=_HEAD).reshape(-1, self._width)
        self.close()
        unfinished = self._output.with_name(self._output.name + ".writing")
        kind = self._output.suffix.lower()
        if kind == ".npy":
            with unfinished.open("wb") as file:
                np.save(file, rows)
        elif kind == ".jsonl":
            with unfinished.open("w", encoding="utf-8") as lines:
                for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
                    lines.write(json_line(index, text, row) + "\n")
        else:
            _write_parquet(unfinished, texts, rows)
        unfinished.replace(self._output)
        self._part.unlink()

    def close(self) -> None:
        """Close the partial file without removing it."""
        self._file.close()


def json_line(index: int, text: str, row: npt.NDArray[np.float32]) -> str:
    """Return a line of JSONL."""
    return json.dumps({"index": index, "text": text, "embedding": row.tolist()}, ensure_ascii=False)


def _write_parquet(path: Path, texts: Sequence[str], rows: npt.NDArray[np.float32]) -> None:
    pyarrow: Any = import_module("pyarrow")
    parquet: Any = import_module("pyarrow.parquet")
    flat = pyarrow.array(rows.reshape(-1))
    embeddings = pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1])
    table = pyarrow.table({"text": pyarrow.array(texts, pyarrow.string()), "embedding": embeddings})
    parquet.write_table(table, path)
