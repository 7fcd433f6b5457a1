"""`woolly run`: answers one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from woolly.cli.commands.pull import fetched, pulled
from woolly.cli.first_run.checkpoint import convert_checkpoint
from woolly.cli.first_run.model_offer import hint, next_steps, offer
from woolly.cli.first_run.multimodal import check_files, find_projector, split_pdfs
from woolly.cli.first_run.state_file import default_model
from woolly.cli.parse.command import command
from woolly.cli.parse.options import (
    ANSWER,
    AS_JSON,
    ENGINE,
    MAX_TOKENS,
    SPEECH,
    SYSTEM,
    adapter_scales,
    complete_fetched,
    hub_file_option,
    hub_model,
    hub_option,
    max_answer_tokens,
    structure,
)
from woolly.cli.parse.parameter import Argument, Option
from woolly.cli.parse.prompt import missing_prompt, model_and_prompt, split_model_and_prompt, with_file_names
from woolly.cli.parse.sampling import SAMPLING, sampling_params
from woolly.cli.parse.template_options import TEMPLATE, engine_of
from woolly.cli.parse.usage_errors import UsageError
from woolly.cli.terminal.progress import print_status
from woolly.machine.blas import import_numpy
from woolly.store import DEFAULT_MODEL

if TYPE_CHECKING:
    from woolly.llm import LLM
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
        "Text or PDF file before the prompt; a text file is the prompt if there is none. - reads standard input to its"
        " end. May be repeated.",
        list,
        metavar="FILE",
    ),
    Option(
        "--image --pdf",
        "Image, PDF file or video before the prompt; may be repeated.",
        list,
        metavar="FILE",
        section=ANSWER,
    ),
    Option(
        "--audio",
        "Audio file before the prompt, or to transcribe as `woolly transcribe` does. May be repeated.",
        list,
        metavar="FILE",
        section=ANSWER,
    ),
    SPEECH,
    SYSTEM,
    Option("--raw", "Continue the prompt without a chat template.", bool, default=False, section=ANSWER),
    MAX_TOKENS,
    Option("--stop -r", "End the answer before this text; may be repeated.", list, section=ANSWER),
    Option("--json-schema", "JSON schema of the answer: a file, or JSON text."),
    Option("--grammar", "GBNF grammar of the answer: a file, or the grammar itself.", section=ANSWER),
    TEMPLATE,
    ENGINE,
    hub_option(),
    hub_file_option(),
    AS_JSON,
    Option("--verbose -v", "Print token counts and speed.", bool, default=False),
    SAMPLING,
    common="model prompt file system max_tokens ctx temperature seed json_schema as_json verbose",
)
def run(
    words: tuple[str, ...],
    model: str | None,
    hf_repo: str | None,
    hf_file: str | None,
    prompt: str | None,
    file: tuple[str, ...],
    image: tuple[str, ...],
    audio: tuple[str, ...],
    speech: dict[str, Any],
    system: str | None,
    raw: bool,
    max_tokens: int | None,
    stop: tuple[str, ...],
    json_schema: str | None,
    grammar: str | None,
    template: dict[str, Any],
    engine: dict[str, Any],
    as_json: bool,
    verbose: bool,
    sampling: dict[str, Any],
) -> None:
    """Answer one prompt, for instance: woolly run "Why is the sky blue?".

    `woolly run MODEL` without a prompt starts a chat on a terminal. Text from a pipe goes before the prompt: git diff |
    woolly run "Write a commit message.". If a pipe sends nothing for 10 seconds, it is ignored; -f - waits longer. A
    newline at the end of a file or a pipe is not part of the prompt.
    """
    import_numpy(engine.get("backend"))
    # Imported late, so that --help answers at once.
    from woolly.cli.terminal.one_prompt import OnePrompt
    from woolly.cli.terminal.transcript import check_transcript, find_transcriber, not_for_speech, transcribe

    image, file = split_pdfs(image, file)
    if raw and (image or audio):
        raise UsageError(
            f"--{'image' if image else 'audio'} needs a chat template, so it cannot be combined with --raw"
        )
    if raw and system is not None:
        raise UsageError("--system needs a chat template, so it cannot be combined with --raw")
    if raw and template:
        raise UsageError(
            f"--{next(iter(template)).replace('_', '-')} needs a chat template, so it cannot be combined with --raw"
        )
    engine = {**engine, **engine_of(template)}

    scales = adapter_scales(engine)

    def params_of(llm: LLM | None) -> SamplingParams:
        limits = {"max_tokens": max_answer_tokens(max_tokens), "stop": stop, **scales}
        return sampling_params(sampling, llm, **limits, **structure(json_schema, grammar))

    params_of(None)  # reports usage errors before downloading a model
    check_files(image, audio)
    model = hub_model(model, hf_repo, hf_file)
    if model is not None and hf_repo is not None:
        pulled(model)
    model = convert_checkpoint(model) if model is not None else None
    words = words if model is not None else (*map(convert_checkpoint, words[:1]), *words[1:])
    first, *others = (model, *words) if model is not None else (*words, None)
    if find_transcriber(first):
        said = prompt or next((word for word in others if word is not None), None)
        refused = {"image": image, "system": system, "raw": raw, "file": file, "max_tokens": max_tokens, "stop": stop}
        refused |= {"json_schema": json_schema, "grammar": grammar, **template}
        check_transcript(audio, speech, {**refused, **sampling}, as_json=as_json)  # before downloading
        assert first is not None
        wanted = {"prompt": said or "", **speech}
        transcribe(fetched(first), wanted, audio, engine, sampling, as_json=as_json, verbose=verbose)
        return
    if speech:
        raise not_for_speech(speech)
    if image or audio:
        chosen = split_model_and_prompt(list(words), model, prompt)[0] or default_model()
        engine = {**engine, "mmproj": find_projector(chosen, image, audio, engine.get("mmproj"))}
    name, text = model_and_prompt(list(words), model, prompt, file)
    if text is None:
        if raw or as_json or verbose or image or audio:
            raise UsageError(missing_prompt(name or DEFAULT_MODEL))
        from woolly.cli.chat.repl import run_repl

        run_repl(name or default_model(), params_of, system, engine, template=template)
        return

    asked = OnePrompt(text, params_of, engine, system, raw, image, audio, as_json, verbose, template)

    # Only for users at a terminal who named no model, because options for one model may not fit another.
    offers = name is None and not as_json and not {"adapters", "control_vectors", "speculation"} & engine.keys()
    offers = offers and not image and not audio
    better = offer() if offers else None
    name = name or default_model()
    with with_file_names(image, audio):
        asked.answer(fetched(name))
    if better is not None:
        path = better.wait()
        print_status(f"woolly: {better.name} answers:")
        asked.answer(path)
    elif offers and name == DEFAULT_MODEL:
        hint()
    if not as_json:
        next_steps()
