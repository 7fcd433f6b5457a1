"""Input and output files of a batch, in JSONL or Parquet."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from woolly.errors import RequestError
from woolly.machine.optional_packages import install_command
from woolly.serving.batches.rows import BadRow, BatchRow, id_of, read_row
from woolly.serving.errors import ApiError
from woolly.serving.gate.json_parser import parse_json
from woolly.serving.generation.thread_pool import run_in_thread
from woolly.store.safe_files import atomic_write

_LINES = (".jsonl", ".ndjson")
_TABLE = ".parquet"
_MAX_LINE_BYTES = 64 << 20  # maximum bytes per line
_BLOCK = 256  # rows of a table in memory


def check_input(path: Path) -> None:
    """Raise RequestError if a file cannot be read as rows."""
    _check_kind(path)
    if not path.is_file():
        raise RequestError(f"{path} does not exist; expected a file with a request per line")
    try:
        path.open("rb").close()
    except OSError as error:
        raise RequestError(f"cannot read {path}: {error.strerror}") from None


def check_output(path: Path) -> None:
    """Raise RequestError if the file name has an unknown extension or the folder does not exist."""
    _check_kind(path)
    if not path.parent.is_dir():
        raise RequestError(f"cannot write {path}: {path.parent} is not a folder")


def count_rows(path: Path) -> int:
    """Return the number of rows, excluding empty lines."""
    if path.suffix.lower() == _TABLE:
        with _read_as_table(path):
            return int(_parquet().ParquetFile(path).metadata.num_rows)
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


async def read_rows(path: Path, endpoint: str | None = None) -> AsyncGenerator[BatchRow | BadRow, None]:
    """Yield each row; a row that cannot be read or is not for `endpoint` becomes a BadRow."""
    with closing(_table_rows(path) if path.suffix.lower() == _TABLE else _lines(path)) as values:
        number = 0
        # Keep a reference to `values`, so that a cancelled reader closes the file only after its thread has ended.
        while (given := await run_in_thread(next, values, None)) is not None:
            value: Any = None
            try:
                if isinstance(given, bytes):
                    if len(given) > _MAX_LINE_BYTES:
                        raise ApiError(
                            400, "invalid_request", f"the line has {len(given)} bytes; the limit is {_MAX_LINE_BYTES}"
                        )
                    value = await parse_json(given)
                else:
                    value = given
                row = read_row(number, value)
                if endpoint is not None and row.url != endpoint:
                    raise ApiError(
                        400,
                        "invalid_request",
                        f"the row is for {row.url}, but the batch is for {endpoint}",
                        param="url",
                    )
                yield row
            except ApiError as error:
                yield BadRow(number, id_of(number, value), error)
            number += 1


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """Write lines atomically in the format given by the file extension, and return the number of lines."""
    # All attempts use the same temporary name, so killed processes leave at most one file.
    with atomic_write(path, aside=path.with_name(f"{path.name}.writing")) as file:
        if path.suffix.lower() == _TABLE:
            return _write_table(file, lines)
        n = 0
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
            file.write(b"\n")
            n += 1
        return n


def _check_kind(path: Path) -> None:
    kinds = (*_LINES, _TABLE)
    if path.suffix.lower() not in kinds:
        raise RequestError(f"{path}: expected a file name that ends in {', '.join(kinds)}")
    if path.suffix.lower() == _TABLE:
        _parquet()


def _parquet() -> Any:
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise RequestError(f".parquet needs pyarrow: {install_command('parquet')}, or use .jsonl") from None


def _lines(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line


def _table_rows(path: Path) -> Generator[dict[str, Any], None, None]:
    """Yield the rows of a table. String columns with JSON, such as `messages` or `body`, are parsed."""
    with _read_as_table(path):
        for block in _parquet().ParquetFile(path).iter_batches(batch_size=_BLOCK):
            for row in block.to_pylist():
                yield {name: _read(name, value) for name, value in row.items() if value is not None}


@contextmanager
def _read_as_table(path: Path) -> Iterator[None]:
    """Convert errors of pyarrow to a RequestError that names the file."""
    try:
        yield
    except (import_module("pyarrow").ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RequestError(f"cannot read {path} as Parquet: {reason}") from None


def _read(name: str, value: Any) -> Any:
    if name in ("body", "messages", "tools", "response_format") and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value  # the route reports the expected type
    return value


def _write_table(file: BinaryIO, lines: Iterable[dict[str, Any]]) -> int:
    """Write a table with the columns custom_id, status, text of the first answer (or null) and the reply as JSON."""
    arrow, parquet = import_module("pyarrow"), _parquet()
    schema = arrow.schema(
        [("custom_id", arrow.string()), ("status", arrow.int32()), ("text", arrow.string()), ("reply", arrow.string())]
    )
    n = 0
    with parquet.ParquetWriter(file, schema) as writer:
        block: list[dict[str, Any]] = []
        for line in lines:
            reply = line["response"]
            whole = json.dumps(reply["body"], ensure_ascii=False, separators=(",", ":"))
            block.append(
                {
                    "custom_id": line["custom_id"],
                    "status": reply["status_code"],
                    "text": _text(reply["body"]),
                    "reply": whole,
                }
            )
            n += 1
            if len(block) == _BLOCK:
                writer.write_table(arrow.Table.from_pylist(block, schema))
                block = []
        writer.write_table(arrow.Table.from_pylist(block, schema))
    return n


def _text(body: Any) -> str | None:
    choices = body.get("choices") if isinstance(body, dict) else None
    if not choices:
        return None
    first = choices[0]
    text = first["message"].get("content") if "message" in first else first.get("text")
    return text if isinstance(text, str) else None
