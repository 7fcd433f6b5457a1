"""`woolly run`: one prompt, one answer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from woolly.cli.pull import pull_with_progress
from woolly.store import DEFAULT_MODEL, is_catalogued

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
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", "-n", help="Most tokens of the answer.", show_default="until the model stops"),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", "--temp", help="0 takes the likeliest token each time.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw from so many likeliest tokens; 0 for all.")] = 40,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that add up to this share.")] = 0.95,
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the likeliest.")] = 0.05,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same answer.", show_default="random")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text; may be repeated.", show_default=False)
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option("--ctx", "-c", help="Context in tokens.", show_default="the model's, at most 8192"),
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", help="Threads.", show_default="all cores")] = None,
    kv_type: Annotated[
        str | None,
        typer.Option("--kv-type", "-ctk", help="How the cache is kept: f16, f32, q8_0.", show_default="f16"),
    ] = None,
    weight_memory: Annotated[
        str | None, typer.Option(help="Most memory for prepared weights, such as 600MB.", show_default="no limit")
    ] = None,
    backend: Annotated[str, typer.Option(help="auto, cpu or reference.")] = "auto",
) -> None:
    """Answer one prompt, for instance: woolly run "Why is the sky blue?"."""
    # Imported late, so that --help answers at once.
    from rich.console import Console

    from woolly.engine import SamplingParams
    from woolly.llm import LLM

    model, prompt = _model_and_prompt(words or [])
    if raw and system is not None:
        raise typer.BadParameter("--system needs a chat template, so it cannot go with --raw")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
    )
    path = pull_with_progress(model, Console(stderr=True)) if is_catalogued(model) else model
    with LLM(path, ctx=ctx, threads=threads, backend=backend, kv_type=kv_type, weight_memory=weight_memory) as llm:
        if raw:
            chunks = llm.generate(prompt, params, stream=True)
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            chunks = llm.chat([*messages, {"role": "user", "content": prompt}], params, stream=True)
        ended = None
        try:
            for chunk in chunks:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
                ended = chunk.finish_reason
        finally:
            # Also after Ctrl-C, so that the shell's prompt starts on a line of its own.
            sys.stdout.write("\n")
        if ended == "length" and max_tokens is None:
            typer.echo(f"woolly: the context of {llm.ctx} tokens is full; --ctx asks for more", err=True)


def _model_and_prompt(words: list[str]) -> tuple[str, str]:
    if not words and not sys.stdin.isatty():
        words = ["-"]
    if not words:
        raise typer.BadParameter('a prompt was expected, for instance: woolly run "Why is the sky blue?"')
    if len(words) > 2:
        raise typer.BadParameter(
            f'a prompt, or a model and a prompt, were expected, but {len(words)} words came; put the prompt in "quotes"'
        )
    if len(words) == 1 and (is_catalogued(words[0]) or _is_file(words[0]) or words[0].endswith(".gguf")):
        # A model alone: its prompt comes from standard input.
        if sys.stdin.isatty():
            raise typer.BadParameter(f"{words[0]} is a model; a prompt was expected after it")
        words = [words[0], "-"]
    model, prompt = (DEFAULT_MODEL, words[0]) if len(words) == 1 else (words[0], words[1])
    if prompt == "-":
        prompt = _standard_input()
    if not prompt.strip():
        raise typer.BadParameter("the prompt is empty")
    return model, prompt


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
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
