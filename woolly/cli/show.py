"""`woolly show`: what is in a file, from its header alone."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from woolly.errors import WoollyError
from woolly.gguf import GGUFFile, open_gguf
from woolly.models import trace
from woolly.store import resolve

__all__ = ["show"]

_LONGEST_VALUE = 100


def show(
    model: str = typer.Argument(..., help="A GGUF file or a model's name.", show_default=False),
    ctx: int = typer.Option(4096, "--ctx", "-c", help="Context length for the memory estimate.", min=1),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Print metadata, tensors by type, parameters, and memory at a context length."""
    with open_gguf(resolve(model)) as file:
        facts = _facts(file, ctx)
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print(facts, Console())


def _facts(file: GGUFFile, ctx: int) -> dict[str, Any]:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for tensor in file.tensors.values():
        count[tensor.type.name] += 1
        size[tensor.type.name] += tensor.n_bytes
    weights = sum(size.values())
    memory: dict[str, Any]
    try:
        cache = round(trace(file).cache_bytes_per_token(4) * ctx)
        memory = {"ctx": ctx, "weights": weights, "kv_cache_f32": cache, "total": weights + cache}
    except WoollyError as error:
        memory = {"ctx": ctx, "weights": weights, "cannot_run": str(error)}
    return {
        "path": str(file.path),
        "version": file.version,
        "file_bytes": file.n_bytes,
        "parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
        "metadata": {key: _shorten(value) for key, value in file.metadata.items()},
        "tensors": {name: {"count": count[name], "bytes": size[name]} for name, _ in size.most_common()},
        "memory": memory,
    }


def _shorten(value: Any) -> Any:
    """Scalars as they are; of an array its length and first elements; long text cut, and said so."""
    if isinstance(value, str):
        more = f"... ({len(value)} characters)"
        return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - len(more)] + more
    if isinstance(value, (bool, int, float)):
        return value
    first = [str(element) for element in list(value[:4])]
    return f"[{len(value)}] " + ", ".join(first) + (", ..." if len(value) > 4 else "")


def _print(facts: dict[str, Any], console: Console) -> None:
    console.print(f"{facts['path']}  (GGUF v{facts['version']}, {_size(facts['file_bytes'])})", highlight=False)
    metadata = Table("metadata", "value", box=None, pad_edge=False)
    for key, value in facts["metadata"].items():
        # Text, not markup: a template is full of brackets. Newlines are shown as they are written in Python.
        metadata.add_row(Text(key), Text(repr(value)[1:-1] if isinstance(value, str) else str(value)))
    console.print(metadata)
    tensors = Table("tensors", "count", "size", box=None, pad_edge=False)
    for name, entry in facts["tensors"].items():
        tensors.add_row(name, str(entry["count"]), _size(entry["bytes"]))
    console.print()
    console.print(tensors)
    console.print()
    console.print(f"parameters  {facts['parameters']:,}", highlight=False)
    memory = facts["memory"]
    if "total" in memory:
        console.print(
            f"memory at {memory['ctx']} tokens  {_size(memory['total'])}"
            f" (weights {_size(memory['weights'])}, KV cache {_size(memory['kv_cache_f32'])})",
            highlight=False,
        )
    else:
        console.print(f"cannot be run: {memory['cannot_run']}", highlight=False, markup=False)


def _size(n: int) -> str:
    if n < 1 << 20:
        return f"{n / (1 << 10):.1f} KiB"
    return f"{n / (1 << 20):.1f} MiB" if n < 1 << 30 else f"{n / (1 << 30):.2f} GiB"
