"""`woolly list`: local models, names that can be pulled, and supported architectures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import click

from woolly.cli.commands.list_catalogue import billions, print_catalogue
from woolly.cli.parse.command import command
from woolly.cli.parse.options import AS_JSON
from woolly.cli.parse.parameter import Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.human_readable import format_size
from woolly.cli.terminal.screen import print_table, stdout_console
from woolly.errors import WoollyError
from woolly.machine.blas import import_numpy
from woolly.store import StoredModel, list_models, models_folder, quant_of


@command(
    Option("--own", "Only models pulled by Woolly.", bool, default=False),
    Option("--paths", "Show paths.", bool, default=False),
    Option(
        "--catalogue",
        "List the names for `woolly pull` instead: the models that run well here, with their expected speed.",
        bool,
        default=False,
    ),
    Option("--all", "With --catalogue, also list the models that do not run well here.", bool, default=False),
    Option("--architectures", "List the supported architectures instead.", bool, default=False),
    AS_JSON,
)
def list_models_here(own: bool, paths: bool, catalogue: bool, all: bool, architectures: bool, as_json: bool) -> None:
    """List the models on this machine: Woolly's, and those of Ollama, LM Studio and Hugging Face's cache.

    Other commands accept all of these names. The server lists Woolly's models with the same names, and accepts the
    others with -m. Unsupported files are listed with the reason. Files of other programs are used in place and never
    changed.
    """
    if catalogue and architectures:
        raise UsageError("--catalogue and --architectures are different lists; use one of them")
    if architectures:
        _print_architectures(as_json)
        return
    if catalogue:
        print_catalogue(as_json, all)
        return
    if all:
        raise UsageError("--all needs --catalogue; `woolly list` already lists all models on this machine")
    import_numpy(None)
    models = [(model, _header(model)) for model in list_models() if not own or model.owner == "woolly"]
    if as_json:
        click.echo(json.dumps([_facts(model, header) for model, header in models], indent=2))
    elif models:
        _print(models, paths)
    else:
        click.echo(f"no models yet in {models_folder()}; `woolly pull` downloads the default model", err=True)


def _facts(model: StoredModel, header: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "path": str(model.path),
        "link_to": None if model.link_to is None else str(model.link_to),
        "bytes": model.n_bytes,
        "owner": model.owner,
        "modified": int(model.modified),
        **header,
    }


def _header(model: StoredModel) -> dict[str, Any]:
    """Return information from a model's header. `cannot_run` has the reason if the model is not supported."""
    from woolly.gguf import open_gguf
    from woolly.gguf.main_type import main_type
    from woolly.models import trace

    facts: dict[str, Any] = {"quantization": quant_of(model.path.name), "architecture": None, "parameters": None}
    facts |= {"cannot_run": None, "sees": _modalities(model)}
    try:
        with open_gguf(model.path) as file:
            architecture = file.metadata.get("general.architecture")
            facts["architecture"] = _readable(architecture) if isinstance(architecture, str) else None
            facts["parameters"] = sum(tensor.n_elements for tensor in file.tensors.values())
            if facts["quantization"] is None:
                facts["quantization"] = main_type(file)
            trace(file)
    except Exception as error:  # a malicious file must not stop the list
        reason = str(error) if isinstance(error, (WoollyError, OSError)) else f"the file cannot be read: {error!r}"
        facts["cannot_run"] = _readable(reason).removeprefix(f"{model.path}: ").partition("; supported:")[0]
    return facts


def _modalities(model: StoredModel) -> list[str]:
    """Return the additional input types of a model (image, audio) if it has a usable projector."""
    from woolly.llm.projector import describe_projector

    try:
        projector = describe_projector(model.path)
    except Exception:  # as above; `woolly show` shows the reason
        return []
    return [] if projector is None else projector.takes


def _readable(text: str) -> str:
    """Return text of a file, with U+FFFD for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _print(models: list[tuple[StoredModel, dict[str, Any]]], paths: bool) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("quantization", no_wrap=True)
    table.add_column("architecture", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("of", no_wrap=True)
    also = [", ".join(map(shlex.quote, _other_names(model))) for model, _ in models]
    console = stdout_console()
    is_narrow = console.is_terminal  # a terminal column would be too narrow for sentences
    remarks = ["; ".join(_remarks(model, header, is_short=is_narrow)) for model, header in models]
    for title, shown in (("also called", any(also)), ("remark", any(remarks)), ("path", paths)):
        if shown:
            table.add_column(title, overflow="fold")
    for (model, header), others, remark in zip(models, also, remarks, strict=True):
        row = [
            shlex.quote(model.name),
            format_size(model.n_bytes),
            header["quantization"] or "",
            header["architecture"] or "",
        ]
        row += ["" if header["parameters"] is None else billions(header["parameters"]), model.owner]
        row += [others] * any(also) + [remark] * any(remarks) + [str(model.path)] * paths
        table.add_row(*row)
    print_table(console, table)
    for model, header in models if is_narrow else []:
        if header["cannot_run"]:
            console.print(f"{shlex.quote(model.name)} cannot run: {header['cannot_run']}", soft_wrap=True)


def _other_names(model: StoredModel) -> list[str]:
    """Return aliases that differ from the file name, with or without suffix."""
    stem = model.path.stem
    return [name for name in model.aliases if name not in (f"{model.name}.gguf", f"{stem}.gguf", model.name)]


def _remarks(model: StoredModel, header: dict[str, Any], *, is_short: bool) -> Iterator[str]:
    from woolly.models import transcribes

    if header["cannot_run"]:
        yield "cannot be run" if is_short else f"cannot run: {header['cannot_run']}"
    if transcribes(header["architecture"]):
        yield "speech-to-text"
    elif header["sees"]:
        yield "vision"
    if model.link_to is not None:
        yield f"link to {model.link_to}"


def _print_architectures(as_json: bool) -> None:
    from woolly.models import architectures

    names = architectures()
    click.echo(json.dumps(names) if as_json else "\n".join(names))
