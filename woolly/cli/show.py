"""`woolly show`: what is in a file, from its header alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from woolly.errors import RequestError, WoollyError
from woolly.store import resolve

if TYPE_CHECKING:
    from woolly.gguf import GGUFFile

__all__ = ["show"]

_LONGEST_VALUE = 100


def show(
    model: str = typer.Argument(..., help="A GGUF file or a model's name.", show_default=False),
    ctx: int = typer.Option(None, "--ctx", "-c", help="Context for the memory estimate.", show_default="as run takes"),
    tensors: bool = typer.Option(False, "--tensors", help="List every tensor."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Print metadata, tensors by type, parameters, and memory at a context length."""
    from woolly.gguf import open_gguf

    if ctx is not None and ctx < 1:
        raise typer.BadParameter(f"--ctx is {ctx}; at least 1 was expected")
    with open_gguf(resolve(model)) as file:
        facts = _facts(file, ctx, tensors)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _facts(file: GGUFFile, ctx: int | None, tensors: bool) -> dict[str, Any]:
    from woolly.llm import default_ctx
    from woolly.models import trace

    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for tensor in file.tensors.values():
        count[tensor.type.name] += 1
        size[tensor.type.name] += tensor.n_bytes
    weights = sum(size.values())
    memory: dict[str, Any]
    try:
        plan = trace(file)
        ctx = default_ctx(file, plan, ctx)
        # Packed weights are as large as the file's; the cache keeps two bytes of each number.
        cache = round(plan.cache_bytes_per_token(2) * ctx)
        memory = {"ctx": ctx, "weights": weights, "kv_cache": cache, "total": weights + cache}
    except RequestError:
        raise
    except WoollyError as error:
        memory = {"weights": weights, "cannot_run": str(error).removeprefix(f"{file.path}: ")}
    listed = {name: {"type": t.type.name, "shape": list(t.shape)} for name, t in file.tensors.items()}
    return {
        "path": str(file.path),
        "version": file.version,
        "file_bytes": file.n_bytes,
        "parameters": sum(tensor.n_elements for tensor in file.tensors.values()),
        "metadata": {_printable(key): _shorten(value) for key, value in file.metadata.items()},
        "tensors": {name: {"count": count[name], "bytes": size[name]} for name, _ in size.most_common()},
        "memory": memory,
        **({"tensor_list": {_printable(name): entry for name, entry in listed.items()}} if tensors else {}),
    }


def _shorten(value: Any) -> Any:
    """Scalars as they are; of an array its length and first elements; long text cut, and said so."""
    if isinstance(value, str):
        value = _printable(value)
        more = f"... ({len(value)} characters)"
        return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - len(more)] + more
    if isinstance(value, (bool, int, float)):
        # JSON knows no NaN.
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    first = [_printable(str(element)) for element in list(value[:4])]
    return f"[{len(value)}] " + ", ".join(first) + (", ..." if len(value) > 4 else "")


def _printable(text: str) -> str:
    """Control characters and bytes that are no UTF-8 written out, so that a file cannot drive the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    # Plain text, not markup: names and templates are full of brackets.
    console = Console(markup=False, highlight=False)
    console.print(f"{_printable(facts['path'])}  (GGUF v{facts['version']}, {_size(facts['file_bytes'])})")
    metadata = Table("metadata", "value", box=None, pad_edge=False)
    for key, value in facts["metadata"].items():
        metadata.add_row(key, str(value))
    console.print(metadata)
    if facts["tensors"]:
        tensors = Table("tensors", "count", "size", box=None, pad_edge=False)
        for name, entry in facts["tensors"].items():
            tensors.add_row(name, str(entry["count"]), _size(entry["bytes"]))
        console.print()
        console.print(tensors)
    if "tensor_list" in facts:
        listed = Table("tensor", "type", "shape", box=None, pad_edge=False)
        for name, entry in facts["tensor_list"].items():
            listed.add_row(name, entry["type"], " x ".join(map(str, entry["shape"])))
        console.print()
        console.print(listed)
    console.print()
    if facts["parameters"]:
        console.print(f"parameters  {facts['parameters']:,}")
    memory = facts["memory"]
    if "total" in memory:
        console.print(
            f"memory at {memory['ctx']} tokens  {_size(memory['total'])}"
            f" (weights {_size(memory['weights'])}, KV cache {_size(memory['kv_cache'])})"
        )
    else:
        console.print(f"cannot be run: {memory['cannot_run']}")


def _size(n: int) -> str:
    if n < 1 << 20:
        return f"{n / (1 << 10):.1f} KiB"
    return f"{n / (1 << 20):.1f} MiB" if n < 1 << 30 else f"{n / (1 << 30):.2f} GiB"
