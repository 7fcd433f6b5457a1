"""`woolly run`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from woolly.cli.options import (
    AsJson,
    Backend,
    Ctx,
    Grammar,
    JsonSchema,
    KvType,
    MaxTokens,
    MinP,
    Seed,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    WeightMemory,
    answer_limit,
    structure,
)
from woolly.cli.pull import fetched
from woolly.store import DEFAULT_MODEL, is_model_name

__all__ = ["run"]


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="A GGUF file or a model's name, and the prompt. Without MODEL, the default model answers."
            " A prompt of '-' is read from standard input.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A GGUF file or a model's name, in place of MODEL.", show_default=False),
    ] = None,
    system: System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.8,
    top_k: TopK = 40,
    top_p: TopP = 0.95,
    min_p: MinP = 0.05,
    seed: Seed = None,
    stop: Stop = None,
    json_schema: JsonSchema = None,
    grammar: Grammar = None,
    ctx: Ctx = None,
    threads: Threads = None,
    kv_type: KvType = None,
    weight_memory: WeightMemory = None,
    backend: Backend = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer one prompt, for instance: woolly run "Why is the sky blue?"."""
    # Imported late, so that --help answers at once.
    from woolly.cli.answer import Timing, collect, show_plain
    from woolly.engine import SamplingParams, Stream
    from woolly.llm import LLM

    name, prompt = _model_and_prompt(words or [], model)
    if raw and system is not None:
        raise typer.BadParameter("--system needs a chat template, so it cannot go with --raw")
    params = SamplingParams(
        max_tokens=answer_limit(max_tokens),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
        **structure(json_schema, grammar),
    )
    path = fetched(name)
    with LLM(path, ctx=ctx, threads=threads, backend=backend, kv_type=kv_type, weight_memory=weight_memory) as llm:
        if raw:
            (requests,) = llm.prepare(prompt, params)
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            requests = llm.prepare_chat([*messages, {"role": "user", "content": prompt}], params)
        timing = Timing.begin()
        chunks = Stream(llm.driver, requests)
        ended: str | None
        if as_json:
            text, ended = collect(chunks, timing)
            facts = {"text": text, "finish_reason": ended, "model": str(llm.path), "seed": requests[0].sampler.seed}
            typer.echo(json.dumps({**facts, **timing.facts(requests[0])}, indent=2))
        else:
            ended = show_plain(chunks, timing)
        if ended == "length" and params.max_tokens is None:
            typer.echo(f"woolly: the context of {llm.ctx} tokens is full; --ctx asks for more", err=True)


def _model_and_prompt(words: list[str], model: str | None) -> tuple[str, str]:
    if model is not None:
        if len(words) > 1:
            raise typer.BadParameter(
                f'with --model one prompt was expected, but {len(words)} words came; put the prompt in "quotes"'
            )
        words = [model, *words]
    if not words and not sys.stdin.isatty():
        words = ["-"]
    if not words:
        raise typer.BadParameter('a prompt was expected, for instance: woolly run "Why is the sky blue?"')
    if len(words) > 2:
        raise typer.BadParameter(
            f'a prompt, or a model and a prompt, were expected, but {len(words)} words came; put the prompt in "quotes"'
        )
    if len(words) == 1 and (model is not None or _is_model(words[0])):
        # A model alone: its prompt comes from standard input.
        if sys.stdin.isatty():
            raise typer.BadParameter(
                f"{words[0]} is a model; a prompt was expected after it (woolly chat {words[0]} talks with it)"
            )
        words = [words[0], "-"]
    name, prompt = (DEFAULT_MODEL, words[0]) if len(words) == 1 else (words[0], words[1])
    if prompt == "-":
        prompt = _standard_input()
    if not prompt.strip():
        raise typer.BadParameter("the prompt is empty")
    return name, prompt


def _is_model(word: str) -> bool:
    try:
        return is_model_name(word) or word.endswith(".gguf") or Path(word).is_file()
    except OSError:  # a prompt may be longer than any name
        return False


def _standard_input() -> str:
    if sys.stdin.isatty():
        typer.echo("woolly: type the prompt, end with Ctrl-D", err=True)
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8 (byte {error.start})") from None
