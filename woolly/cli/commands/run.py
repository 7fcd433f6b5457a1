"""`woolly run`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from woolly.cli.commands.pull import fetched, pulled
from woolly.cli.first_run.checkpoint import convert_checkpoint
from woolly.cli.first_run.model_offer import hint, next_steps, offer
from woolly.cli.first_run.multimodal import check_files, find_projector
from woolly.cli.first_run.state_file import default_model
from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    ANSWER,
    AS_JSON,
    ENGINE,
    MAX_TOKENS,
    SYSTEM,
    adapter_scales,
    complete_fetched,
    hub_model,
    hub_option,
    max_answer_tokens,
    structure,
)
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.prompt import missing_prompt, model_and_prompt, split_model_and_prompt, with_file_names
from woolly.cli.parse.sampling import SAMPLING, sampling_params
from woolly.cli.parse.usage import UsageError
from woolly.cli.terminal.progress import print_status
from woolly.cli.terminal.sizes import plural
from woolly.machine.blas import import_numpy
from woolly.store import DEFAULT_MODEL, Preset

if TYPE_CHECKING:
    from woolly.sampling import SamplingParams


@command(
    Argument(
        "words",
        "[MODEL] [PROMPT]",
        "A GGUF file or a model's name, and the prompt. Without MODEL, the default model answers. A prompt of '-' is"
        " read from standard input.",
        list,
        complete=complete_fetched,
    ),
    Option("--model -m", "The model, in place of the argument MODEL.", metavar="MODEL", complete=complete_fetched),
    Option("--prompt -p", "The prompt, in place of the argument PROMPT."),
    Option(
        "--file -f",
        "Text file that goes before the prompt; without a prompt, it is the prompt. - reads standard input to its end."
        " May be repeated.",
        list,
        metavar="FILE",
    ),
    Option(
        "--image",
        "Image, PDF file or video that goes before the prompt; may be repeated.",
        list,
        metavar="FILE",
        section=ANSWER,
    ),
    Option(
        "--audio",
        "Audio file before the prompt, or to transcribe with a Whisper or Parakeet model. May be repeated.",
        list,
        metavar="FILE",
        section=ANSWER,
    ),
    Option(
        "--language",
        "Spoken language for Whisper models, such as de or german. Default: detected.",
        section=ANSWER,
    ),
    Option("--translate", "Translate into English (Whisper models).", bool, default=False, section=ANSWER),
    Option(
        "--word-timestamps",
        "With --json: add word timestamps (Whisper models; Parakeet models always add them).",
        bool,
        to="timed",
        default=False,
        section=ANSWER,
    ),
    SYSTEM,
    Option("--raw", "Continue the prompt as it is, without a chat template.", bool, default=False, section=ANSWER),
    MAX_TOKENS,
    Option("--stop -r", "End the answer before this text; may be repeated.", list, section=ANSWER),
    Option("--json-schema", "The answer is JSON of this schema: a file, or its text."),
    Option("--grammar", "The answer follows this grammar in GBNF: a file, or its text.", section=ANSWER),
    ENGINE,
    hub_option(),
    AS_JSON,
    Option("--verbose -v", "Say how many tokens were read and generated, and how fast.", bool, default=False),
    SAMPLING,
    common="model prompt file system max_tokens ctx temperature seed json_schema as_json verbose",
)
def run(
    words: tuple[str, ...],
    model: str | None,
    hf_repo: str | None,
    prompt: str | None,
    file: tuple[str, ...],
    image: tuple[str, ...],
    audio: tuple[str, ...],
    language: str | None,
    translate: bool,
    timed: bool,
    system: str | None,
    raw: bool,
    max_tokens: int | None,
    stop: tuple[str, ...],
    json_schema: str | None,
    grammar: str | None,
    engine: dict[str, Any],
    as_json: bool,
    verbose: bool,
    sampling: dict[str, Any],
) -> None:
    """Answer one prompt, for instance: woolly run "Why is the sky blue?".

    `woolly run MODEL`, without a prompt, starts a chat if you are at a terminal. Text from a pipe goes before the
    prompt: git diff | woolly run "Write a commit message.". If a pipe sends nothing for 10 seconds, the prompt is
    answered without it; -f - waits longer. A newline at the end of a file or a pipe is not part of the prompt.
    """
    import_numpy(engine.get("backend"))
    # Imported late, so that --help answers at once.
    from woolly.cli.terminal.answer import EMPTY, Timing, is_template_missing, show_plain, stats_of
    from woolly.cli.terminal.transcript import check_transcript, find_transcriber, transcribe
    from woolly.llm import LLM

    if raw and (image or audio):
        raise UsageError(f"--{'image' if image else 'audio'} needs a chat template, so it cannot go with --raw")
    if raw and system is not None:
        raise UsageError("--system needs a chat template, so it cannot go with --raw")

    scales = adapter_scales(engine)

    def params_of(preset: Preset | None) -> SamplingParams:
        limits = {"max_tokens": max_answer_tokens(max_tokens), "stop": stop, **scales}
        return sampling_params(sampling, preset, **limits, **structure(json_schema, grammar))

    params_of(None)  # refuses what is mistyped before a model is fetched
    check_files(image, audio)
    model = hub_model(model, hf_repo)
    if model is not None and hf_repo is not None:
        pulled(model)
    model = convert_checkpoint(model) if model is not None else None
    words = words if model is not None else (*map(convert_checkpoint, words[:1]), *words[1:])
    first, *others = (model, *words) if model is not None else (*words, None)
    if find_transcriber(first):
        said = prompt or next((word for word in others if word is not None), None)
        refused = {"image": image, "system": system, "raw": raw, "file": file, "max_tokens": max_tokens, "stop": stop}
        refused |= {"json_schema": json_schema, "grammar": grammar}
        wanted = {"prompt": said or "", "language": language, "translate": translate, "word_timestamps": timed}
        if timed and not as_json:
            raise UsageError("--word-timestamps needs --json")
        assert first is not None
        check_transcript(audio, {**refused, **sampling})  # before anything is fetched
        transcribe(fetched(first), wanted, audio, engine, sampling, as_json=as_json, verbose=verbose)
        return
    if language is not None or translate or timed:
        typed = "translate" if translate else "word-timestamps" if timed else "language"
        advice = "choose whisper:base or parakeet" if timed and not translate else "say it in the prompt"
        raise UsageError(f"--{typed} is for speech-to-text models; {advice}")
    if image or audio:
        asked = split_model_and_prompt(list(words), model, prompt)[0] or default_model()
        engine = {**engine, "mmproj": find_projector(asked, image, audio, engine.get("mmproj"))}
    name, text = model_and_prompt(list(words), model, prompt, file)
    if text is None:
        if raw or as_json or verbose or image or audio:
            raise UsageError(missing_prompt(name or DEFAULT_MODEL))
        from woolly.cli.chat.repl import run_repl

        run_repl(name or default_model(), params_of, system, engine)
        return

    def answer(path: str | Path) -> None:
        with LLM(path, **engine) as llm:
            params = params_of(llm.preset)
            if raw:
                stream = llm.generate(text, params, stream=True)
            else:
                messages = [{"role": "system", "content": system}] if system is not None else []
                asked = {"role": "user", "content": text}
                talked = [*messages, asked]
                stream = llm.chat(
                    talked, params, stream=True, split_reasoning=False, images=image or None, audio=audio or None
                )
            timing = Timing.begin()
            ended: str | None
            if as_json:
                for _ in stream:
                    timing.tick()
                complete = stream.completion
                ended = complete.finish_reason
                facts = {"text": complete.text, "finish_reason": ended, "model": str(llm.path), "seed": complete.seed}
                click.echo(json.dumps({**facts, **timing.facts(complete)}, indent=2))
            else:
                ended = show_plain(stream, timing)
            if not raw and is_template_missing(llm.template, stream.completion.text):
                print_status(f"woolly: {EMPTY}; --raw continues the text")
            n_answer = len(stream.completion.token_ids)
            if ended == "length" and (params.max_tokens is None or n_answer < params.max_tokens):
                print_status(f"woolly: the answer is cut: the context of {llm.ctx} tokens is full; --ctx asks for more")
            elif ended == "length" and (
                # What must have a structure is read by a program, and the cut text does not have it.
                verbose or params.structure is not None or (sys.stderr is not None and sys.stderr.isatty())
            ):
                print_status(
                    f"woolly: the answer is cut after {plural(params.max_tokens or 0, 'token')}; -n asks for more"
                )
            if verbose:
                print_status(stats_of(timing.facts(stream.completion)))

    # Only if a person reads the answer and named no model: what belongs to one model does not fit another.
    asks = name is None and not as_json and not {"adapters", "control_vectors", "speculation"} & engine.keys()
    asks = asks and not image and not audio
    better = offer() if asks else None
    name = name or default_model()
    with with_file_names(image, audio):
        answer(fetched(name))
    if better is not None:
        path = better.wait()
        print_status(f"woolly: {better.name} answers:")
        answer(path)
    elif asks and name == DEFAULT_MODEL:
        hint()
    if not as_json:
        next_steps()
