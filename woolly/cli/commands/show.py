"""`woolly show`: information from a file's header."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON, NAMED, model_argument, one_model
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_size, plural
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import RequestError, StoreError, WoollyError
from woolly.machine.background_load import NOTABLE, OtherLoad
from woolly.machine.blas import import_numpy
from woolly.store import resolve

if TYPE_CHECKING:
    from rich.console import Console

    from woolly.gguf import GGUFFile

_MAX_VALUE_LENGTH = 100
_BANDWIDTH_MEGABYTES = 256


@command(
    model_argument("A GGUF file or a model's name; hf:org/repo:Q4_K_M or an https:// address is not fetched for this."),
    NAMED,
    Option("--ctx -c", "Context for the memory estimate.", int, shown="as for `run`"),
    Option("--kv-type -ctk", "KV cache type for the memory estimate.", shown="f16"),
    Option(
        "--modelfile", "Print the model's name and settings as a Modelfile for `woolly create`.", bool, default=False
    ),
    Option("--tensors", "List every tensor.", bool, default=False),
    Option(
        "--template",
        "Print a tool call and the reasoning markers as the chat template shows them.",
        bool,
        default=False,
    ),
    Option(
        "--identity",
        "Load the model and print its identity, a digest of everything that determines its output.",
        bool,
        default=False,
    ),
    Option(
        "--check",
        "Read all weights, check that they are finite, and print the SHA-256 of each file.",
        bool,
        default=False,
    ),
    AS_JSON,
)
def show(
    model: str | None,
    named: str | None,
    ctx: int | None,
    kv_type: str | None,
    modelfile: bool,
    tensors: bool,
    template: bool,
    identity: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Print metadata, tensors by type, parameters, memory requirements and the estimated speed.

    For a remote model, only the header is downloaded.
    """
    import_numpy(None)
    from woolly.cli.commands.pull import chosen_size
    from woolly.cli.commands.remote_header import is_remote, remote_header
    from woolly.gguf import open_gguf
    from woolly.runtime import check_kv_type

    if ctx is not None and ctx < 1:
        raise UsageError(f"--ctx is {ctx}; expected at least 1")
    check_kv_type(kv_type or "f16")
    model = one_model("show", model, named)
    if modelfile:
        from woolly.cli.parse.derived_names import modelfile_of

        click.echo(modelfile_of(model), nl=False)
        return
    here = _here(model)
    if here is None and is_remote(model):
        model = chosen_size(model)
        if identity or check:
            name = "--identity" if identity else "--check"
            raise UsageError(f"{name} needs the weights; run `woolly pull {model}` first")
        with remote_header(model) as file:
            facts = _facts(file, ctx, kv_type, tensors)
            facts["path"] = model
    else:
        with open_gguf(here or resolve(model)) as file:
            facts = _facts(file, ctx, kv_type, tensors)
            facts |= _images(file.path, facts["memory"])
            if check:
                from woolly.cli.commands.show_check import check_weights

                facts["check"] = check_weights(file)
    if identity:
        facts["identity"] = _identity(here or resolve(model))
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        _print(facts, with_call=template)


def _here(model: str) -> Path | None:
    try:
        return resolve(model)
    except StoreError:
        return None


def _images(path: Path, memory: dict[str, Any]) -> dict[str, Any]:
    """Describe the projector next to a model ("" if there is none) and add its memory to the model's inputs."""
    from woolly.engine.multimodal import tower_backend, tower_bytes
    from woolly.llm.projector import describe_projector

    projector = describe_projector(path)
    if projector is None:
        return {}
    found: dict[str, Any] = {"projector": str(projector.path), "bytes": projector.n_bytes, "type": projector.kind}
    if "total" in memory and (n_bytes := tower_bytes(projector.path)):
        memory["tower"] = n_bytes
        memory["total"] += n_bytes
        memory["fits"] = memory["total"] <= memory["available"]
    if not projector.reason:
        found["runs_on"] = tower_backend(projector.path)
    return {"pictures": found | ({"cannot_run": projector.reason} if projector.reason else {})}


def _image_text(images: dict[str, Any]) -> str:
    place = "CPU" if images["runs_on"] == "cpu" else "GPU"
    return f"{format_size(images['bytes'])}, {images['type']}, on the {place}"


def _identity(path: Path) -> dict[str, Any]:
    from woolly.llm import LLM

    with LLM(path, preset="none", ctx=64, kv_tokens=64) as llm:
        found = llm.identity()
    return {"id": found.id, **asdict(found)}


def _facts(file: GGUFFile, ctx: int | None, kv_type: str | None, tensors: bool) -> dict[str, Any]:
    from woolly import _native
    from woolly.cli.commands.show_gpu import detect_gpu, estimate_on_gpu
    from woolly.cli.commands.show_template import describe_template
    from woolly.engine import default_ctx, describe_draft
    from woolly.llm.speculation import embedded_draft
    from woolly.machine.memory import available_memory
    from woolly.models import trace

    count: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        count[tensor.type.name] += 1
        n_bytes[tensor.type.name] += tensor.n_bytes
    weights = sum(n_bytes.values())
    memory: dict[str, Any]
    drafts: dict[str, str] = {}
    gpu: dict[str, Any] = {}
    try:
        plan = trace(file, ctx=ctx)
        card, reason = detect_gpu()
        left = None if card is None else max(0, card.usable - weights)
        ctx = default_ctx(file, plan, ctx, kv_type, left)
        # Packed weights have the same size as in the file.
        plan = describe_draft(file, plan, ctx, *embedded_draft(file.path, "auto"))
        own = plan.draft
        weights += 0 if own is None else sum(w.n_bytes for w in own.weights.values() if w.tensor not in file.tensors)
        parts = (plan,) if own is None or own.borrows else (plan, own)
        cache = round(sum(part.context_bytes(ctx, _native.kv_value_bytes(kv_type or "f16")) for part in parts))
        total, available = weights + cache, available_memory()
        memory = {"ctx": ctx, "weights": weights, "kv_cache": cache, "total": total, "available": available}
        memory["fits"] = total <= available
        gpu = {"unused": reason} if card is None else estimate_on_gpu(card, file, plan, ctx, kv_type)
        drafts = {} if own is None else {"drafts": "mtp"}
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
        "tensors": {name: {"count": count[name], "bytes": n_bytes[name]} for name, _ in n_bytes.most_common()},
        "memory": memory,
        **drafts,
        **({"chat": chat} if (chat := describe_template(file)) else {}),
        **({"gpu": gpu} if gpu else {}),
        **({"speed": _speed(file, gpu)} if "total" in memory else {}),
        **({"tensor_list": {_printable(name): entry for name, entry in listed.items()}} if tensors else {}),
    }


def _speed(file: GGUFFile, gpu: dict[str, Any]) -> dict[str, Any]:
    """Return the speed limit of memory bandwidth, also with the GPU: each token reads its active weights."""
    from woolly._native import measure_bandwidth
    from woolly.machine.cores import default_threads

    per_token = 0.0
    for name, tensor in file.tensors.items():
        if name == "token_embd.weight" and "output.weight" in file.tensors:
            continue  # only one row is read
        per_token += tensor.n_bytes * (_experts_used(file) if "_exps." in name else 1)
    threads = default_threads()
    with OtherLoad() as others:
        bandwidth = max(measure_bandwidth(threads, _BANDWIDTH_MEGABYTES) for _ in range(2))
    # GPU and CPU read their parts of the weights one after the other.
    on_cpu = gpu["cpu_bytes_per_token"] if gpu.get("bandwidth_gbs") else per_token
    seconds = min(on_cpu, per_token) / (bandwidth * 1e9)
    if gpu.get("bandwidth_gbs"):
        seconds += max(0.0, per_token - on_cpu) / (gpu["bandwidth_gbs"] * 1e9)
    return {
        "bytes_per_token": round(per_token),
        "bandwidth_gbs": round(bandwidth, 1),
        "most_tokens_per_second": round(1 / max(seconds, 1e-12), 1),
        "threads": threads,
        "others_share": others.share,
    }


def _experts_used(file: GGUFFile) -> float:
    architecture = file.metadata.get("general.architecture", "")
    used, count = (file.metadata.get(f"{architecture}.{key}") for key in ("expert_used_count", "expert_count"))
    return used / count if isinstance(used, int) and isinstance(count, int) and count else 1.0


def _shorten(value: Any) -> Any:
    """Return scalars unchanged, arrays as length and first elements, and long strings truncated with a mark."""
    if isinstance(value, str):
        value = _printable(value)
        more = f"... ({len(value)} characters)"
        return value if len(value) <= _MAX_VALUE_LENGTH else value[: _MAX_VALUE_LENGTH - len(more)] + more
    if isinstance(value, (bool, int, float)):
        # JSON has no NaN.
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)
    first = [_printable(str(element)) for element in list(value[:4])]
    return f"[{len(value)}] " + ", ".join(first) + (", ..." if len(value) > 4 else "")


def _printable(text: str) -> str:
    """Escape control characters and invalid UTF-8, so that a file cannot control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print_chat(console: Console, chat: dict[str, Any], *, with_call: bool) -> None:
    if "cannot_render" in chat:
        console.print(f"chat template  {_printable(chat['cannot_render'])}", markup=False)
        return
    console.print(f"tool calls  {_printable(chat['tool_format'])}", markup=False)
    if with_call:
        if "reasoning" in chat:
            start, end = (_printable(chat["reasoning"][key]) for key in ("start", "end"))
            console.print(f"reasoning  {start} ... {end} ({chat['reasoning_format']})", markup=False)
        for line in chat.get("call", "").splitlines():
            console.print(f"  {_printable(line)}", markup=False, highlight=False)


def _print(facts: dict[str, Any], *, with_call: bool = False) -> None:
    from rich.table import Table

    from woolly.cli.commands.show_gpu import describe_gpu
    from woolly.models import transcribes

    console = stdout_console()
    form = f"GGUF v{facts['version']}" if facts["version"] else "whisper.cpp's form"
    console.print(f"{_printable(facts['path'])}  ({form}, {format_size(facts['file_bytes'])})")
    metadata = Table(box=None, pad_edge=False)
    longest = max((len(key) for key in facts["metadata"]), default=0)
    metadata.add_column("metadata", overflow="fold", no_wrap=longest < console.width * 2 // 3)
    metadata.add_column("value", overflow="fold")
    for key, value in facts["metadata"].items():
        metadata.add_row(key, str(value))
    print_table(console, metadata)
    if facts["tensors"]:
        tensors = Table("tensors", "count", "size", box=None, pad_edge=False)
        for name, entry in facts["tensors"].items():
            tensors.add_row(name, str(entry["count"]), format_size(entry["bytes"]))
        console.print()
        print_table(console, tensors)
    if "tensor_list" in facts:
        listed = Table("tensor", "type", "shape", box=None, pad_edge=False)
        for name, entry in facts["tensor_list"].items():
            listed.add_row(name, entry["type"], " x ".join(map(str, entry["shape"])))
        console.print()
        print_table(console, listed)
    console.print()
    if facts["parameters"]:
        console.print(f"parameters  {facts['parameters']:,}")
    if transcribes(facts["metadata"].get("general.architecture")):
        console.print("audio  speech-to-text")
    if chat := facts.get("chat"):
        _print_chat(console, chat, with_call=with_call)
    if images := facts.get("pictures"):
        what = images.get("cannot_run") or _image_text(images)
        console.print(f"images  {_printable(Path(images['projector']).name)} ({_printable(what)})")
    if check := facts.get("check"):
        from woolly.cli.commands.show_check import check_lines

        for line in check_lines(check):
            console.print(_printable(line), markup=False, highlight=False, soft_wrap=True)
    if identity := facts.get("identity"):
        console.print(
            f"identity  {identity['id']} (arithmetic {identity['arithmetic']}, backend {identity['backend']},"
            f" cache {identity['kv_type']}, files {identity['model'][:16]}, probe {identity['probe'][:16] or 'none'})"
        )
    memory = facts["memory"]
    if "total" in memory:
        console.print(
            f"memory at {memory['ctx']} tokens  {format_size(memory['total'])}"
            f" (weights {format_size(memory['weights'])}, KV cache {format_size(memory['kv_cache'])}"
            + (f", for images {format_size(memory['tower'])})" if "tower" in memory else ")")
        )
        gpu, speed = facts["gpu"], facts["speed"]
        verdict = "fits" if memory["fits"] else "does NOT fit: a smaller type or --ctx takes less"
        available = f"{format_size(memory['available'])} are available"
        console.print(
            f"here  fits the GPU; beside it {available}" if gpu.get("fits") else f"here  {verdict}; {available}"
        )
        console.print(f"gpu  {describe_gpu(gpu)}")
        given = f"memory gave {speed['bandwidth_gbs']:.1f} GB/s to {plural(speed['threads'], 'thread')} just now"
        if gpu.get("bandwidth_gbs") and gpu["weights"]:
            given = f"the GPU's memory gives {gpu['bandwidth_gbs']:,.0f} GB/s" + ("" if gpu["fits"] else f", {given}")
        console.print(
            f"speed  at most {speed['most_tokens_per_second']:.1f} tokens/s for one answer: each token reads"
            f" {format_size(speed['bytes_per_token'])}, and {given}"
        )
        if speed["others_share"] is not None and speed["others_share"] >= NOTABLE:
            console.print(
                f"other programs used {speed['others_share']:.0%} of the CPU during the measurement; an idle machine"
                " is faster"
            )
        if "drafts" in facts:
            console.print("speculation  mtp: the file has a block for draft tokens")
    else:
        console.print(f"cannot run: {memory['cannot_run']}")
