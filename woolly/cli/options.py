"""Options that several commands share: one name, one help text, one meaning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from woolly.errors import RequestError

__all__ = [
    "AsJson",
    "Backend",
    "Command",
    "Ctx",
    "Grammar",
    "JsonSchema",
    "KvType",
    "MaxTokens",
    "MinP",
    "ModelName",
    "Seed",
    "Stop",
    "System",
    "Temperature",
    "Threads",
    "TopK",
    "TopP",
    "WeightMemory",
    "answer_limit",
    "structure",
]

ModelName = Annotated[str, typer.Argument(help="A GGUF file or a model's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", help="Threads.", show_default="all cores")]
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
Temperature = Annotated[float, typer.Option("--temperature", "--temp", help="0 takes the likeliest token each time.")]
TopK = Annotated[int, typer.Option("--top-k", help="Draw from so many likeliest tokens; 0 for all.")]
TopP = Annotated[float, typer.Option("--top-p", help="Draw from the likeliest tokens that add up to this share.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens less likely than this share of the likeliest.")]
# -s is the seed here as it is in `serve` and in llama.cpp.
Seed = Annotated[
    int | None, typer.Option("--seed", "-s", help="The same seed gives the same answer.", show_default="random")
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", help="End the answer before this text; may be repeated.", show_default=False),
]
JsonSchema = Annotated[
    str | None,
    typer.Option("--json-schema", help="The answer is JSON of this schema: a file, or its text.", show_default=False),
]
Grammar = Annotated[
    Path | None, typer.Option("--grammar", help="The answer follows this file in GBNF.", show_default=False)
]


class Command(TyperCommand):
    """A command whose errors name what a person typed: `--top-p is -1`, where the library says `top_p is -1`."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and rename in its errors."""
        try:
            return super().invoke(ctx)
        except RequestError as error:
            flags = {
                parameter.name: max(parameter.opts, key=len)
                for parameter in self.params
                if parameter.name and parameter.param_type_name == "option"
            }
            found = re.match(r"(\w+)(?= is\b)", str(error))
            text = str(error)
            if found and found[1] in flags:
                text = flags[found[1]] + text[found.end() :]
            if "ctx" in flags:
                text = re.sub(r"\braise ctx\b", f"raise {flags['ctx']}", text)
            raise type(error)(text) from error


def answer_limit(max_tokens: int | None) -> int | None:
    """`-n -1` means no limit, as in llama.cpp."""
    return None if max_tokens == -1 else max_tokens


def structure(json_schema: str | None, grammar: Path | None) -> dict[str, Any]:
    """What `--json-schema` and `--grammar` ask of the sampler."""
    if json_schema is not None and grammar is not None:
        raise typer.BadParameter("--json-schema and --grammar each say what the answer looks like; give one of them")
    if grammar is not None:
        return {"grammar": _read("--grammar", grammar)}
    if json_schema is None:
        return {}
    inline = json_schema.lstrip().startswith("{") or json_schema.strip() in ("true", "false")
    text = json_schema if inline else _read("--json-schema", Path(json_schema))
    try:
        schema = json.loads(text)
    except ValueError as error:
        where = "--json-schema" if inline else f"--json-schema: {json_schema}"
        raise RequestError(f"{where} is no JSON ({error})") from None
    return {"json_schema": schema}


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{option}: {path} is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise RequestError(f"{option}: {path} cannot be read ({error.strerror or error})") from None
