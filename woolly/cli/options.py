"""Options that several commands share: one name, one help text, one meaning."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from woolly.cli.usage import UsageError
from woolly.errors import RequestError, StoreError
from woolly.store import CATALOGUE, list_models

__all__ = [
    "AsJson",
    "Backend",
    "Ctx",
    "Grammar",
    "JsonSchema",
    "KvType",
    "MaxTokens",
    "ModelName",
    "ModelOption",
    "Stop",
    "System",
    "Threads",
    "WeightMemory",
    "answer_limit",
    "complete_model",
    "model_and_text",
    "one_model",
    "read_text",
    "structure",
]


def complete_model(incomplete: str) -> list[str]:
    """Names for the Tab key; the shell adds files. A colon ends a word in bash, so names with one are left out."""
    try:
        names = [*CATALOGUE, *(model.name for model in list_models())]
    except StoreError:
        return []
    return sorted({name for name in names if name.startswith(incomplete) and not set(name) & set(": ")})


ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file or a model's name.",
        show_default=False,
        autocompletion=complete_model,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", help="In place of MODEL.", show_default=False, autocompletion=complete_model
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", help="Threads.", show_default="all physical cores")]
Ctx = Annotated[
    int | None, typer.Option("--ctx", "-c", help="Context in tokens.", show_default="the model's, at most 8192")
]
KvType = Annotated[
    str | None, typer.Option("--kv-type", "-ctk", help="How the cache is kept: f16, f32, q8_0.", show_default="f16")
]
WeightMemory = Annotated[
    str | None,
    typer.Option("--weight-memory", help="Most memory for prepared weights, such as 600MB.", show_default="no limit"),
]
Backend = Annotated[str, typer.Option("--backend", help="auto, cpu or reference.")]

System = Annotated[str | None, typer.Option("--system", "-sys", help="System prompt.", show_default=False)]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", help="Most tokens of the answer; -1 for no limit.", show_default="until the model stops"
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", "-r", help="End the answer before this text; may be repeated.", show_default=False),
]
JsonSchema = Annotated[
    str | None,
    typer.Option("--json-schema", help="The answer is JSON of this schema: a file, or its text.", show_default=False),
]
Grammar = Annotated[
    str | None,
    typer.Option("--grammar", help="The answer follows this grammar in GBNF: a file, or its text.", show_default=False),
]


def one_model(command: str, model: str | None, named: str | None, default: str | None = None) -> str:
    """The model that is meant by its place or by -m; UsageError where both are given and differ, or neither is."""
    if model is not None and named is not None and model != named:
        raise UsageError(f"two models are given, {model} and -m {named}: leave one of them out")
    found = model or named or default
    if found is None:
        raise UsageError(
            f"a model was expected, the path of a GGUF file or a name of `woolly list`: woolly {command} smollm2"
        )
    return found


def model_and_text(
    command: str, model: str | None, text: str | None, named: str | None, expected: str
) -> tuple[str, str]:
    """Of a command that takes a model and a text: with -m, the only word is the text. A missing text is piped in."""
    if named is not None and text is None and model != named:
        model, text = None, model
    name = one_model(command, model, named)
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(expected)
    return name, "-" if text is None else text


def answer_limit(max_tokens: int | None) -> int | None:
    """`-n -1` means no limit, as in llama.cpp."""
    return None if max_tokens == -1 else max_tokens


def structure(json_schema: str | None, grammar: str | None) -> dict[str, Any]:
    """What `--json-schema` and `--grammar` ask of the sampler."""
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar each say what the answer looks like; give one of them")
    if grammar is not None:
        return {"grammar": grammar if "::=" in grammar else read_text("--grammar", Path(grammar))}
    if json_schema is None:
        return {}
    inline = json_schema.lstrip().startswith("{") or json_schema.strip() in ("true", "false")
    text = json_schema if inline else read_text("--json-schema", Path(json_schema))
    try:
        schema = json.loads(text)
    except ValueError as error:
        where = "--json-schema" if inline else f"--json-schema: {json_schema}"
        raise RequestError(f"{where} is no JSON ({error})") from None
    return {"json_schema": schema}


def read_text(option: str, path: Path) -> str:
    """A file that an option names; RequestError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{option}: {path} is not UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:  # the latter: a NUL in the name
        raise RequestError(f"{option}: {path} cannot be read ({getattr(error, 'strerror', None) or error})") from None
