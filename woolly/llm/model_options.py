"""ModelOptions: a table row for each option of loading a model.

The rows define the keywords of `LLM`, the flags of commands, the server's settings (woolly.toml and environment), the
validation and the reference. See docs/make/add-an-option.md.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

if TYPE_CHECKING:
    from woolly.llm.llm import LLM

Init = TypeVar("Init", bound=Callable[..., None])

_RUNS = "How a model runs"  # group of settings


@dataclass(frozen=True)
class Setting:
    """Option as a setting of the server."""

    flags: str = ""  # flags of `woolly serve`, separated by spaces; if flags, help or shown is "", the row's is used
    help: str = ""
    shown: str | None = ""  # text to show instead of the default; None: the default itself
    name: str = ""  # name in woolly.toml, and after WOOLLY_ in the environment; "": the name of the option
    clients: bool = False  # True if clients may set the option when they request a model


@dataclass(frozen=True)
class Row:
    """Declaration of an option."""

    name: str  # keyword of LLM
    type: str  # annotation, which determines how text is parsed
    default: Any
    help: str = ""  # help text in commands that load a model
    flags: str = ""  # flags of these commands, separated by spaces; "": no flag
    shown: str = ""  # text to show instead of the default
    metavar: str | None = None
    low: int | None = None  # minimum; None if there is no minimum
    choices: tuple[str, ...] = ()
    setting: Setting | None = None  # None if the server has no setting for the option, or declares it elsewhere

    @property
    def setting_name(self) -> str:
        """Name of the server setting."""
        return (self.setting.name if self.setting is not None else "") or self.name

    @property
    def kind(self) -> Any:
        """Type of the command line value: int, float, Path or str."""
        plain = self.type.removesuffix(" | None")
        return {"int": int, "float": float, "Path": Path}.get(plain, str)


def option(default: Any, help: str = "", *, setting: Setting | None = None, **row: Any) -> Any:
    """Return a dataclass field with its row; `row` has fields of Row. Server settings also read this metadata."""
    metadata: dict[str, Any] = {"group": _RUNS}
    if setting is not None:
        same = {name: value for name, value in {"help": help, **row}.items() if getattr(setting, name, None) == ""}
        setting = dataclasses.replace(
            setting, **{name: same[name] for name in ("flags", "help", "shown") if name in same}
        )
        metadata |= {"flags": tuple(setting.flags.split()), "help": setting.help, "shown": setting.shown or None}
    metadata["row"] = {"help": help, "setting": setting, **row}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that have the same name in library, commands and server; `Settings` inherits these fields."""

    threads: int | None = option(
        None,
        "Number of threads.",
        flags="--threads -t",
        shown="all physical cores",
        low=1,
        setting=Setting("-t --threads", "Number of compute threads.", clients=True),
    )
    kv_tokens: int | None = option(
        None,
        low=1,
        setting=Setting(
            "--kv-tokens", "Capacity of the KV cache in tokens, for all requests.", "up to four contexts", clients=True
        ),
    )
    itl_target: int | None = option(
        None,
        low=0,
        setting=Setting(
            "--itl-target",
            "Target time per token of running answers in ms (inter-token latency) while prompts are computed; 0: none.",
            "250 on CPUs, 50 on GPUs",
            clients=True,
        ),
    )
    cache_disk: str | None = option(
        None,
        setting=Setting(
            "--cache-disk",
            "Disk space for KV pages of prompts, such as 20GB. Pages survive a restart.",
            "none",
        ),
    )
    cache_disk_folder: Path | None = option(  # noqa: RUF009
        None,
        setting=Setting(
            "--cache-disk-folder", "Folder of these pages, which several servers may share.", "pages next to the models"
        ),
    )
    weight_memory: str | None = option(
        None,
        "Maximum memory for prepared weights, such as 600MB.",
        flags="--weight-memory",
        shown="no limit",
        setting=Setting(clients=True),
    )
    backend: str = option(
        "auto",
        "auto, cuda, metal, vulkan, cpu or reference.",
        flags="--backend",
        shown="auto",
        choices=("auto", "cuda", "metal", "vulkan", "cpu", "reference"),
        setting=Setting(
            help="Backend: cuda, metal, vulkan, cpu, reference, or auto (the fastest available).", clients=True
        ),
    )
    device: str | None = option(
        None,
        "Device: cpu, cuda, metal or vulkan; cuda:N or vulkan:N for one GPU; cuda:0,1 for several.",
        flags="--device -dev",
        shown="auto",
        setting=Setting("-dev --device", shown="auto; replicas take turns", clients=True),
    )
    gpu_layers: int | str | None = option(
        None,
        "Number of layers on the GPU; the CPU runs the rest. all, or auto for as many as fit.",
        flags="--gpu-layers -ngl --n-gpu-layers",
        shown="auto",
        metavar="N",
        setting=Setting("-ngl --gpu-layers --n-gpu-layers", clients=True),
    )
    n_cpu_moe: int | str | None = option(
        None,
        "Layers, from the first, whose experts stay on the CPU; all for every layer.",
        flags="--n-cpu-moe -ncmoe",
        shown="as many as do not fit",
        metavar="N",
        setting=Setting(clients=True),
    )
    mmproj: str | None = option(
        None,
        "Projector file (mmproj) for image and audio input; none for text only.",
        flags="--mmproj -mm",
        shown="next to the model",
        metavar="FILE",
        setting=Setting(
            "-mm --mmproj",
            "Projector file (mmproj) of --model for image and audio input; none for text only, in all models.",
            "next to each model",
        ),
    )
    rope_scaling: str | None = option(
        None,
        "RoPE scaling beyond the training context: none, linear or yarn.",
        flags="--rope-scaling",
        shown="from the file",
        setting=Setting(),
    )
    rope_scale: float | None = option(
        None,
        "RoPE scaling factor: context as a multiple of the training context.",
        flags="--rope-scale",
        shown="from the file",
        setting=Setting(),
    )
    rope_freq_base: float | None = option(
        None,
        "RoPE base frequency.",
        flags="--rope-freq-base",
        shown="from the file",
        setting=Setting(),
    )
    yarn_orig_ctx: int | None = option(
        None,
        "Training context for YaRN.",
        flags="--yarn-orig-ctx",
        shown="the model's context",
        low=1,
        setting=Setting(),
    )
    stages: tuple[str, ...] = option(
        (),
        setting=Setting(
            "--stages",
            "HOST:PORT of `woolly stage` processes with the layers of --model, in order, separated by commas.",
            "none",
        ),
    )
    stage_token_file: Path | None = option(  # noqa: RUF009
        None, setting=Setting("--stage-token-file", "File with the token of the stages.", "none")
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(EngineOptions):
    """Keyword arguments of `LLM` as plain values, as in settings and JSON.

    These options have a different name in the server (llama.cpp's), or correspond to several settings.
    """

    ctx: int | None = option(
        None,
        "Context length in tokens.",
        flags="--ctx -c",
        shown="the model's, within free memory",
        setting=Setting(
            "-c --ctx-size --ctx",
            "Maximum number of prompt and answer tokens per request.",
            name="ctx_size",
            clients=True,
        ),
        low=1,
    )
    kv_type: str | None = option(
        None,
        "Type of K and V in the cache (llama.cpp's -ctk sets only K): f16, f32, q8_0 or q4; or two types, such as"
        " q8_0/q4.",
        flags="--kv-type -ctk",
        shown="f16",
        setting=Setting("-ctk --cache-type-k --kv-type", name="cache_type_k", clients=True),
    )
    max_running: int | str | None = option(
        None,
        setting=Setting(
            "-np --parallel",
            "Maximum number of concurrent requests; others wait. auto adapts it to throughput and memory.",
            "auto",
            "parallel",
            True,
        ),
    )
    chunk: int | None = option(
        None,
        low=1,
        setting=Setting("-b --batch-size", "Maximum tokens per step, up to 512.", "512", "batch_size", True),
    )
    speculation: str = option(
        "auto",
        "Draft method: a smaller model, an mtp- file, prompt_lookup, mtp (the model's block), mtp_lookup or none.",
        flags="--model-draft -md",
        shown="mtp if the file has it",
        metavar="MODEL",
        setting=Setting(
            "-md --model-draft",
            "Draft method: a smaller model, prompt_lookup, mtp, mtp_lookup, none, or auto for mtp if the file has it.",
            shown=None,
            name="model_draft",
        ),
    )
    draft_tokens: int = option(
        8,
        "Maximum draft tokens per step.",
        flags="--draft-max --draft",
        shown="8",
        low=1,
        setting=Setting(name="draft_max"),
    )
    metadata: tuple[str, ...] = option(
        (),
        "Metadata overrides: KEY=TYPE:VALUE, separated by commas.",
        flags="--override-kv",
        shown="none",
        metavar="TEXT",
        setting=Setting(name="override_kv"),
    )
    adapters: tuple[str, ...] = option(())
    control_vectors: tuple[tuple[str, float], ...] = option(())
    control_vector_layers: tuple[int, int] | None = option(None)
    chat_template: str | None = option(None)
    tool_format: str | None = option(
        None,
        "JSON file with rows of tool call formats, for a model that writes calls in another form than its template.",
        flags="--tool-format",
        shown="derived from the chat template",
        setting=Setting("--tool-format", "JSON file with rows of tool call formats.", "derived from the chat template"),
    )
    preset: str | None = option(
        None,
        "Table of presets.toml; none disables presets.",
        flags="--preset",
        shown="the model's name",
    )
    check_memory: bool = option(True)  # the server and its replicas track the memory of all models


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of `LLM` for type checkers, with every accepted type."""

    backend: str
    device: str | None
    threads: int | None
    ctx: int | None
    kv_tokens: int | None
    itl_target: int | None
    weight_memory: int | str | None
    kv_type: str | None
    gpu_layers: int | str | None
    n_cpu_moe: int | str | None
    max_running: int | str | None
    chunk: int | None
    speculation: str | os.PathLike[str] | LLM | None
    draft_tokens: int
    metadata: Mapping[str, int | float | bool | str] | Sequence[str] | None
    rope_scaling: str | None
    rope_scale: float | None
    rope_freq_base: float | None
    yarn_orig_ctx: int | None
    adapters: Mapping[str, str | os.PathLike[str]] | Sequence[str | os.PathLike[str]] | None
    control_vectors: Mapping[str, float] | Sequence[str | os.PathLike[str]] | None
    control_vector_layers: tuple[int, int] | None
    chat_template: str | None
    tool_format: str | os.PathLike[str] | None
    preset: str | None
    mmproj: str | os.PathLike[str] | None
    cache_disk: int | str | None
    cache_disk_folder: str | os.PathLike[str] | None
    stages: Sequence[str] | None
    stage_token_file: str | os.PathLike[str] | None
    check_memory: bool


def rows_of(options: type = ModelOptions) -> dict[str, Row]:
    """Return the rows of a class of options, by keyword of LLM."""
    return _read(options)


@functools.cache
def _read(options: Any) -> dict[str, Row]:
    return {
        field.name: Row(field.name, str(field.type), field.default, **field.metadata["row"])
        for field in dataclasses.fields(options)
        if "row" in field.metadata
    }


def takes_options(init: Init) -> Init:
    """Expose the rows as keyword-only arguments of a function that takes `**options`, for help() and type checks."""
    own = inspect.signature(init)
    kept = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    rows, hints = rows_of(), LoadOptions.__annotations__
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if rows[name].default == () else rows[name].default,  # both mean no value
            annotation=hint.__forward_arg__,
        )
        for name, hint in hints.items()
    ]
    init.__signature__ = own.replace(parameters=[*kept, *shown])  # type: ignore[attr-defined]
    return init
