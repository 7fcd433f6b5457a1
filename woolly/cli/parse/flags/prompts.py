"""Flags for models, prompts, sampling and templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from woolly.cli.parse.flags.foreign_flag import (
    ForeignFlag,
    alias,
    harmless,
    rejected,
    rejected_switch,
    switch,
    words,
)
from woolly.cli.parse.usage_errors import UsageError

_PULL = "download it with `woolly pull hf:org/repo:QUANT`, then use -m NAME"
_CHAT = "use `woolly chat` for a conversation and `woolly run` for one prompt"
_KEYS = "set the key with --override-kv, such as qwen3.rope.scaling.yarn_beta_fast=float:32"
_FILE_SAYS = "the GGUF file determines the RoPE type"
_UNSAMPLED = "this command does not sample"
_TEMPLATES = "`woolly run`, `woolly chat` and `woolly serve` render chat templates"
_MEASURING = "bench perplexity quantize imatrix tokenize embed"
_TERMINAL = "output is plain text"
_ADAPTED = "`woolly export` merges adapters into a model"
_ANSWERING = "run chat serve"

# Letters of --sampler-seq.
_LETTERS = {
    "d": "dry",
    "e": "penalties",
    "k": "top_k",
    "m": "min_p",
    "p": "top_p",
    "s": "top_n_sigma",
    "t": "temperature",
    "x": "xtc",
    "y": "typ_p",
}


def _sampler_names(value: str) -> Sequence[str]:
    unknown = [letter for letter in value if letter not in _LETTERS]
    if unknown or not value:
        raise UsageError(f"--sampler-seq is {value!r}; expected letters of {''.join(_LETTERS)}, such as edkypmxt")
    return ("--samplers", ";".join(_LETTERS[letter] for letter in value))


def _scale(value: str) -> Sequence[str]:
    try:
        return ("--rope-scale", f"{1 / float(value):g}")
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"--rope-freq-scale is {value!r}; expected a factor such as 0.5") from None


def _system(value: str) -> Sequence[str]:
    from woolly.cli.parse.options import read_text  # this module is imported by it

    return ("--system", read_text("--system-prompt-file", Path(value)))


def _version() -> str:
    from woolly import __version__

    return f"woolly {__version__}"


def _devices() -> str:
    from woolly.runtime import find_gpu, name_gpus

    gpus = [find_gpu(int(name.partition(":")[2]), name.partition(":")[0]) for name in name_gpus()]
    lines = [
        f"  {name}: {gpu.name} ({gpu.total >> 20} MiB, {gpu.free >> 20} MiB free)"
        for name, gpu in zip(name_gpus(), gpus, strict=True)
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])


def _prompt(value: str) -> Sequence[str]:
    return ("--file", value)


PROMPTS = (
    # Models.
    ForeignFlag("-mu --model-url", "--model", into=lambda value: ("--model", value), commands="run chat serve"),
    rejected("-hf -hfr --hf-repo -mu --model-url", _PULL),
    rejected("-hff --hf-file", "-hf org/repo:QUANT chooses a file, as does `woolly pull hf:org/repo/FILE`"),
    rejected("-dr --docker-repo", "only the Hugging Face hub is supported; see `woolly list --catalogue`"),
    ForeignFlag("-hft --hf-token", sets="HF_TOKEN"),
    ForeignFlag("--offline", takes_value=False, sets="WOOLLY_OFFLINE"),
    rejected("-mmu --mmproj-url", "`woolly pull` downloads the model's projector"),
    words("--no-mmproj --no-mmproj-auto", "--mmproj", "none"),
    switch("--mmproj-auto --no-mmproj --no-mmproj-auto", done="on"),
    rejected("-mm --mmproj --image --video --audio", "use images and audio with `woolly run`, `chat` and `serve`"),
    alias("--video", "--image", commands="run"),
    rejected(
        "--image-min-tokens --image-max-tokens",
        "the model's processor determines the tokens of an image; send an image of another size",
    ),
    switch("--mmproj-offload", "an encoder runs on the model's device", off_names="--no-mmproj-offload", done="on"),
    harmless("-mmdev --mmproj-device", "an encoder runs on the model's device"),
    harmless("--mtmd-batch-max-tokens", "the number of image tokens per step does not change answers"),
    rejected("--lora --lora-scaled", _ADAPTED),
    rejected(
        "--control-vector --control-vector-scaled --control-vector-layer-range",
        "only `woolly run`, `woolly chat` and `woolly serve` support them",
    ),
    rejected("--override-kv", "`woolly run`, `chat`, `serve`, `perplexity`, `imatrix` and `embed` take it"),
    ForeignFlag("--rope-freq-scale", "--rope-scale", into=_scale),
    rejected("--rope-freq-scale --rope-scale --rope-scaling --rope-freq-base --yarn-orig-ctx", _FILE_SAYS),
    rejected("--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast", _KEYS, done="-1 -1.0"),
    rejected("-gan --grp-attn-n", _FILE_SAYS, done="1"),
    rejected("-gaw --grp-attn-w", _FILE_SAYS, done="512"),
    # Prompts.
    alias("--system-prompt", "--system"),
    ForeignFlag("-sysf --system-prompt-file", "--system", into=_system),
    alias("--reverse-prompt", "--stop"),
    alias("--n-predict --predict", "--max-tokens"),
    ForeignFlag("-bf --binary-file --in-file", "--file", into=_prompt),
    alias("--words", "--word-timestamps", takes_value=False),
    words("-no-cnv --no-conversation", "--raw", commands="run"),
    switch("-st --single-turn -no-cnv --no-conversation", done="on off", commands="run"),
    switch("-cnv --conversation -i --interactive -if --interactive-first", done="on", commands="chat"),
    rejected_switch("-cnv --conversation -i --interactive -if --interactive-first -st --single-turn", _CHAT),
    rejected_switch("-no-cnv --no-conversation", "`woolly run --raw` continues a prompt without a chat template"),
    rejected("-sys --system-prompt -sysf --system-prompt-file -bf --binary-file -r --reverse-prompt", _CHAT),
    harmless("-n --predict --n-predict", _UNSAMPLED, commands=_MEASURING),
    rejected("-p --prompt -f --file", _CHAT, commands="chat"),
    harmless("-p --prompt", "the text is an argument, or a file given with -f", commands="perplexity imatrix"),
    switch(
        "--escape -e",
        "escape sequences are not interpreted; in the shell, write a newline as $'\\n'",
        off_names="--no-escape",
        done="off",
    ),
    switch("-mli --multiline-input", "end a line with a backslash to continue it on the next line"),
    switch("--simple-io", _TERMINAL),
    harmless("-co --color", _TERMINAL, done="auto", bare="on"),
    switch("--display-prompt", "prompts are not repeated", off_names="--no-display-prompt", done="off"),
    switch("--verbose-prompt", "`woolly tokenize` shows the tokens of a prompt"),
    words("--show-timings", "--verbose", commands="run"),
    switch("--show-timings", "/stats shows them", off_names="--no-show-timings", done="off"),
    switch("--perf", "use --json for timings and `woolly why` to explain them", off_names="--no-perf", done="on off"),
    harmless("-ptc --print-token-count", "--verbose prints the number of tokens", done="-1 0"),
    harmless("--prompt-cache", "`woolly serve --cache-disk SIZE` caches prompts on disk"),
    switch("--prompt-cache-all --prompt-cache-ro", "`woolly serve --cache-disk SIZE` caches prompts on disk"),
    rejected("--in-prefix --in-suffix", "the chat template determines prefixes and suffixes"),
    rejected_switch("--in-prefix-bos", "the chat template determines prefixes and suffixes"),
    rejected_switch(
        "-sp --special", "control tokens are not printed; `woolly tokenize` shows them", commands=_ANSWERING
    ),
    switch("--ppl", "perplexity has a command of its own", off_names="--no-ppl", done="off"),
    switch("--no-context-shift", done="on", commands="run chat"),
    alias("--output-file", "--output", commands="imatrix"),
    rejected("-o --output --output-file", "redirect standard output instead, as in > FILE", commands="run chat"),
    # Sampling.
    ForeignFlag("--sampler-seq --sampling-seq", "--samplers", into=_sampler_names),
    alias("--json-schema-file -j -jf", "--json-schema"),
    alias("--grammar-file", "--grammar"),
    rejected(
        "--adaptive-target --adaptive-decay",
        "there is no adaptive-p sampler; see --mirostat and --dynatemp-range",
        done="-1 -1.0 0.9 0.90",
    ),
    switch("-bs --backend-sampling --backend_sampling", "sampling runs on the CPU"),
    harmless(
        "-s --seed --temp --temperature --top-k --top-p --min-p --samplers --sampler-seq",
        _UNSAMPLED,
        commands=_MEASURING,
    ),
    harmless(
        "--sampling-seq --top-nsigma --top-n-sigma --xtc-probability --xtc-threshold", _UNSAMPLED, commands=_MEASURING
    ),
    harmless(
        "--typical --typical-p --repeat-last-n --repeat-penalty --presence-penalty", _UNSAMPLED, commands=_MEASURING
    ),
    harmless("--frequency-penalty --dry-multiplier --dry-base --dry-allowed-length", _UNSAMPLED, commands=_MEASURING),
    harmless(
        "--dry-penalty-last-n --dry-sequence-breaker --dynatemp-range --dynatemp-exp", _UNSAMPLED, commands=_MEASURING
    ),
    harmless("--mirostat --mirostat-lr --mirostat-ent -l --logit-bias", _UNSAMPLED, commands=_MEASURING),
    harmless(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file --keep", _UNSAMPLED, commands=_MEASURING
    ),
    switch("--ignore-eos", _UNSAMPLED, commands=_MEASURING),
    switch("--context-shift", _UNSAMPLED, off_names="--no-context-shift", done="off", commands=_MEASURING),
    # Templates and reasoning.
    switch("--jinja", "Jinja always renders chat templates", off_names="--no-jinja", done="on"),
    rejected("--chat-template --chat-template-file --chat-template-kwargs", _TEMPLATES),
    rejected("-rea --reasoning --reasoning-effort --reasoning-budget --reasoning-budget-message", _TEMPLATES),
    harmless("--reasoning-format", "reasoning is shown while it is generated", done="none auto", commands="run chat"),
    ForeignFlag(
        "--reasoning-preserve",
        "--chat-template-kwargs",
        takes_value=False,
        off_names="--no-reasoning-preserve",
        into=lambda value: (
            "--chat-template-kwargs",
            f'{{"preserve_reasoning": {"true" if value == "on" else "false"}}}',
        ),
        is_weak=True,
    ),
    rejected_switch("--skip-chat-parsing", "answers are always parsed", off_names="--no-skip-chat-parsing", done="off"),
    # Information.
    words("--usage", "--help"),
    ForeignFlag("--version", takes_value=False, prints=_version),
    ForeignFlag("--list-devices", takes_value=False, prints=_devices),
    rejected_switch("-cl --cache-list", "`woolly list` shows the models on this machine"),
    rejected_switch("--completion-bash", "`woolly --install-completion` installs completion for your shell"),
    rejected("--server-base", "use `woolly launch` or another client of a running server"),
)
