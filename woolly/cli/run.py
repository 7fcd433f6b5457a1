"""`woolly run`: one prompt, one answer."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from woolly.cli.options import (
    AsJson,
    Backend,
    Ctx,
    Grammar,
    JsonSchema,
    KvType,
    MaxTokens,
    ModelOption,
    Stop,
    System,
    Threads,
    WeightMemory,
    answer_limit,
    structure,
)
from woolly.cli.prompt import model_and_prompt
from woolly.cli.pull import fetched
from woolly.cli.sampling import sampling_params, takes_sampling
from woolly.cli.usage import UsageError

__all__ = ["run"]


@takes_sampling
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [PROMPT]",
            help="A GGUF file or a model's name, and the prompt. Without MODEL, the default model answers."
            " A prompt of '-' is read from standard input.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="In place of PROMPT.", show_default=False)
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="A text that goes before the prompt, or is it; - for standard input.",
            show_default=False,
        ),
    ] = None,
    system: System = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as it is, without a chat template.")] = False,
    max_tokens: MaxTokens = None,
    stop: Stop = None,
    json_schema: JsonSchema = None,
    grammar: Grammar = None,
    ctx: Ctx = None,
    threads: Threads = None,
    kv_type: KvType = None,
    weight_memory: WeightMemory = None,
    backend: Backend = "auto",
    as_json: AsJson = False,
    *,
    sampling: dict[str, Any],
) -> None:
    """Answer one prompt, for instance: woolly run "Why is the sky blue?".

    What is piped in goes before the prompt: git diff | woolly run "Write a commit message.". A pipe that brings nothing
    for 10 seconds is left alone (-f - waits for it), and /dev/null is not read. A newline at the end of a file or of
    standard input is not part of the prompt.
    """
    # Imported late, so that --help answers at once.
    from woolly.cli.answer import Timing, collect, show_plain
    from woolly.engine import Stream
    from woolly.llm import LLM

    if raw and system is not None:
        raise UsageError("--system needs a chat template, so it cannot go with --raw")
    params = sampling_params(
        sampling, max_tokens=answer_limit(max_tokens), stop=tuple(stop or ()), **structure(json_schema, grammar)
    )
    name, prompt = model_and_prompt(words or [], model, prompt, file)
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
