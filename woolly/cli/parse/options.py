"""Options that several commands share, and the meaning of their values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from woolly.cli.parse.parameter import Argument, Bundle, Completer, Option
from woolly.cli.parse.usage_errors import UsageError
from woolly.errors import RequestError, StoreError
from woolly.llm.model_options import rows_of
from woolly.store import DEFAULT_MODEL, WHEEL_MODELS, HubName, Purpose, catalogue_names, list_models, models_for


def complete_model(incomplete: str) -> list[str]:
    """Return Tab completions: the default model, and models on this machine."""
    try:
        return _completions(incomplete, [*WHEEL_MODELS, *(model.name for model in list_models())])
    except StoreError:
        return []


def complete_fetched(incomplete: str) -> list[str]:
    """Return Tab completions for commands that download: local models, or the catalogue if none matches."""
    return complete_model(incomplete) or complete_pullable(incomplete)


def complete_pullable(incomplete: str) -> list[str]:
    """Return Tab completions: the names of the catalogue."""
    return _completions(incomplete, catalogue_names())


def _completions(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete) and " " not in name})


def model_argument(
    help: str = "A GGUF file or a model's name.", shown: str = "", complete: Completer = complete_model
) -> Argument:
    """Return the argument MODEL, which can also be passed with -m."""
    return Argument("model", "MODEL", help, shown=shown, complete=complete)


ANSWER, _RUNS, _CHANGES = "Prompt and answer", "How the model runs", "Adapters and control vectors"  # titles in --help

MODEL = model_argument()
NAMED = Option(
    "--model -m", "The model, in place of the argument MODEL.", to="named", metavar="MODEL", complete=complete_model
)


def hub_option(section: str = _RUNS) -> Option:
    """Return the option -hf, as in llama.cpp."""
    return Option(
        "--hf-repo -hf -hfr",
        "Model of the Hugging Face hub instead of MODEL, downloaded if necessary.",
        to="hf_repo",
        metavar="ORG/REPO[:QUANT]",
        section=section,
    )


def hub_file_option(section: str = _RUNS) -> Option:
    """Return the option -hff, as in llama.cpp."""
    return Option(
        "--hf-file -hff",
        "File in the repository of -hf.",
        to="hf_file",
        metavar="FILE",
        section=section,
        shown="by QUANT",
    )


TEXT_FILE = Option("--file -f", "The text file, in place of the argument FILE.", metavar="FILE")
AS_JSON = Option("--json", "Print the result as JSON.", bool, to="as_json", default=False)


def engine_option(name: str) -> Option:
    """Return the option for a keyword argument of `LLM`."""
    row = rows_of()[name]
    return Option(row.flags, row.help, row.kind, to=row.name, shown=row.shown, metavar=row.metavar)


THREADS = engine_option("threads")
KV_TYPE = engine_option("kv_type")
WEIGHT_MEMORY = engine_option("weight_memory")
GPU_LAYERS = engine_option("gpu_layers")
BACKEND = engine_option("backend")
DEVICE = engine_option("device")


def _engine(typed: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of `LLM` from the typed options."""
    if "cache_type_v" in typed:
        from woolly.runtime.options import join_kv_types

        values = typed.pop("cache_type_v")
        typed["kv_type"] = join_kv_types(typed.get("kv_type"), values, ("kv_type", "cache_type_v"))
    if not any(name.startswith("control_vector") for name in typed):
        return typed
    from woolly.engine.loading.control_vectors import (  # imported late: --help does without NumPy
        layer_range,
        vectors_of,
    )

    vectors = vectors_of(typed.pop("control_vector", ()), typed.pop("control_vector_scaled", ()))
    layers = typed.pop("control_vector_layer_range", None)
    ranged = {} if layers is None else {"control_vector_layers": layer_range(layers)}
    return typed | {"control_vectors": vectors} | ranged


ENGINE = Bundle(
    "engine",
    (
        *(engine_option(row.name) for row in rows_of().values() if row.flags),
        Option("--cache-type-v -ctv", "Type of cached values only.", to="cache_type_v", shown="--kv-type's"),
        Option(
            "--lora",
            "LoRA adapter in GGUF; may be repeated.",
            list,
            to="adapters",
            metavar="FILE",
            section=_CHANGES,
        ),
        Option(
            "--lora-scaled",
            "LoRA adapter with its scale; may be repeated.",
            list,
            metavar="FILE:SCALE",
            section=_CHANGES,
        ),
        Option(
            "--control-vector",
            "Control vector in GGUF, added to layer outputs; may be repeated.",
            list,
            metavar="FILE",
            section=_CHANGES,
        ),
        Option(
            "--control-vector-scaled",
            "Control vector with its scale; may be repeated.",
            list,
            metavar="FILE:SCALE",
            section=_CHANGES,
            is_pair=True,
        ),
        Option(
            "--control-vector-layer-range",
            "First and last layer of the control vectors.",
            metavar="START:END",
            shown="all",
            section=_CHANGES,
            is_pair=True,
        ),
    ),
    _engine,
    section=_RUNS,
)
_METADATA = tuple(map(engine_option, ("metadata", "rope_scaling", "rope_scale", "rope_freq_base", "yarn_orig_ctx")))
_LORA = Option("--lora", "LoRA adapter in GGUF; may be repeated.", list, to="adapters", metavar="FILE")
METADATA = Bundle("changes", _METADATA, section="Metadata")
CHANGES = Bundle("changes", (_LORA, *_METADATA), section="Adapters and metadata")
SPEECH = Bundle(
    "speech",
    (
        Option("--language", "Spoken language for Whisper models, such as de or german. Default: detected."),
        Option("--translate", "Translate into English (Whisper models).", bool, default=False),
        Option(
            "--word-timestamps",
            "With --json: add word timestamps (Whisper models; Parakeet models always add them).",
            bool,
            to="word_timestamps",
            default=False,
        ),
    ),
    lambda typed: {name: value for name, value in typed.items() if value},
    section=ANSWER,
)
SYSTEM = Option("--system -sys", "System prompt.")
MAX_TOKENS = Option(
    "--max-tokens -n", "Maximum tokens of the answer; -1 for no limit.", int, shown="until the model stops"
)


def one_model(command: str, model: str | None, named: str | None, default: str | None = None) -> str:
    """Return the model passed as MODEL or with -m. Raise UsageError if both differ, or if both are missing."""
    if model is not None and named is not None and model != named:
        raise UsageError(f"two models are given, {model} and -m {named}; omit one of them")
    if "" in (model, named):
        raise UsageError("the model name is empty; expected the path of a GGUF file or a name from `woolly list`")
    found = model or named or default
    if found is None:
        purposes: dict[str, Purpose] = {"embed": "embed", "rerank": "rerank"}
        example = models_for(purposes[command])[0] if command in purposes else DEFAULT_MODEL
        raise UsageError(
            f"missing model; expected the path of a GGUF file or a name from `woolly list`: woolly {command} {example}"
        )
    return found


def hub_model(named: str | None, repo: str | None, file: str | None = None) -> str | None:
    """Return the model of -m, or of -hf as hf:org/repo:QUANT or hf:org/repo/FILE. Raise UsageError if both are used."""
    if repo is None:
        if file is not None:
            raise UsageError(f"-hff is {file}, but its repository is missing; add -hf org/repo")
        return named
    if named is not None:
        raise UsageError(f"two models are given, {named} and -hf {repo}; omit one of them")
    if file is not None:
        try:
            return str(HubName.parse(f"hf:{repo.removeprefix('hf:').partition(':')[0]}/{file}"))
        except StoreError:
            raise UsageError(f"-hf is {repo!r} and -hff {file!r}; expected org/repo and a file in it") from None
    try:
        return str(HubName.parse(f"hf:{repo.removeprefix('hf:')}"))
    except StoreError:
        raise UsageError(f"-hf is {repo!r}; expected org/repo or org/repo:QUANT") from None


def model_and_text(
    command: str, model: str | None, text: str | None, named: str | None, expected: str
) -> tuple[str, str]:
    """Return the model and the text of a command. With -m, a single word is the text. - reads standard input."""
    if named is not None and text is None and model != named:
        model, text = None, model
    name = one_model(command, model, named)
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(expected)
    return name, "-" if text is None else text


def model_and_file(
    command: str, model: str | None, text: str | None, named: str | None, file: str | None, expected: str
) -> tuple[str, str]:
    """Return the model and the file of a command, which -f may name in place of an argument."""
    if file is None:
        return model_and_text(command, model, text, named, expected)
    if text is not None:
        raise UsageError(f"two files are given, {text} and -f {file}; omit one of them")
    return one_model(command, model, named), file


def adapter_scales(engine: dict[str, Any]) -> dict[str, Any]:
    """Move the files of `--lora-scaled` to `--lora`. Return the field of SamplingParams with the scales."""
    if "lora_scaled" not in engine:
        return {}
    from woolly.engine.loading.adapters import scaled_file  # imported late: --help does without NumPy

    whole, scaled = engine.get("adapters", ()), [scaled_file(text) for text in engine.pop("lora_scaled")]
    engine["adapters"] = (*whole, *(file for file, _ in scaled))
    return {"adapters": dict(enumerate([*(1.0 for _ in whole), *(scale for _, scale in scaled)]))}


def max_answer_tokens(max_tokens: int | None) -> int | None:
    """Return `max_tokens` of SamplingParams. As in llama.cpp, `-n -1` means no limit."""
    if max_tokens is not None and max_tokens < 1 and max_tokens != -1:
        expected = "expected an integer of at least 1, or -1 for no limit"
        raise RequestError(f"max_tokens is {max_tokens}; {expected}", field="max_tokens")
    return None if max_tokens == -1 else max_tokens


def structure(json_schema: str | None, grammar: str | None) -> dict[str, Any]:
    """Return the fields of SamplingParams for `--json-schema` and `--grammar`."""
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar cannot be combined; omit one of them")
    if grammar is not None:
        return {"grammar": grammar if "::=" in grammar else read_text("--grammar", Path(grammar))}
    if json_schema is None:
        return {}
    inline = json_schema.lstrip().startswith("{") or json_schema.strip() in ("true", "false")
    text = json_schema if inline else read_text("--json-schema", Path(json_schema))
    try:
        schema = json.loads(text)
    except ValueError as error:
        place = f": line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        if inline:
            raise UsageError(f"--json-schema is neither a file nor JSON{place}") from None
        raise RequestError(f"--json-schema: {json_schema} is not JSON{place}") from None
    return {"json_schema": schema}


def read_text(option: str, path: Path) -> str:
    """Return the text of an option's file. Raise RequestError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(f"{option}: {path} is not UTF-8 (byte {error.start}); save it as UTF-8 text") from None
    except (OSError, ValueError) as error:  # the latter: NUL in the name
        raise RequestError(
            f"{option}: {path} cannot be read ({getattr(error, 'strerror', None) or error}); check its path"
        ) from None
