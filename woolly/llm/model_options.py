"""ModelOptions: one row for each option that a model is opened with.

The keywords of `LLM`, the flags of commands, the server's settings with their names in woolly.toml and in the
environment, the checks and the reference are made from the rows. docs/make/add-an-option.md shows how one is added.
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

_RUNS = "How a model runs"  # the group of settings


@dataclass(frozen=True)
class Setting:
    """The option as a setting of the server."""

    flags: str  # of `woolly serve`, separated by spaces
    help: str
    shown: str | None = None  # shown instead of the default
    name: str = ""  # in woolly.toml, and after WOOLLY_ in the environment; "": the option's name
    clients: bool = False  # whether a client may choose it for a model that it asks to load


@dataclass(frozen=True)
class Row:
    """Declaration of an option: everything but the code that uses it."""

    name: str  # the keyword of LLM
    type: str  # the annotation: how text is read
    default: Any
    help: str = ""  # of the commands that open a model for one task
    flags: str = ""  # of these commands, separated by spaces; "": no command
    shown: str = ""  # shown instead of the default
    metavar: str | None = None
    low: int | None = None  # minimum; None: not a number, or no minimum
    choices: tuple[str, ...] = ()
    setting: Setting | None = None  # None: the server has no such setting, or another one for it

    @property
    def setting_name(self) -> str:
        """The name of the server's setting."""
        return (self.setting.name if self.setting is not None else "") or self.name

    @property
    def kind(self) -> Any:
        """The type of what is typed on the command line: int, Path, or str."""
        plain = self.type.removesuffix(" | None")
        return {"int": int, "float": float, "Path": Path}.get(plain, str)


def option(default: Any, help: str = "", *, setting: Setting | None = None, **row: Any) -> Any:
    """A dataclass field with its row; `row` are fields of Row. The metadata are also used for a setting's field."""
    metadata: dict[str, Any] = {"row": {"help": help, "setting": setting, **row}, "group": _RUNS}
    if setting is not None:
        metadata |= {"flags": tuple(setting.flags.split()), "help": setting.help, "shown": setting.shown}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that the library, the commands and the server know by one name; `Settings` inherits their fields."""

    threads: int | None = option(
        None,
        "Threads.",
        flags="--threads -t",
        shown="all physical cores",
        low=1,
        setting=Setting("-t --threads", "Threads that compute.", "all physical cores", clients=True),
    )
    kv_tokens: int | None = option(
        None,
        low=1,
        setting=Setting(
            "--kv-tokens", "Tokens that the cache holds for all requests.", "up to four contexts", clients=True
        ),
    )
    cache_disk: str | None = option(
        None,
        setting=Setting(
            "--cache-disk",
            "Most that pages of prompts may take on disk, such as 20GB; they outlive the server.",
            "none",
        ),
    )
    cache_disk_folder: Path | None = option(  # noqa: RUF009
        None,
        setting=Setting(
            "--cache-disk-folder", "Folder of these pages, which several servers may share.", "pages beside the models"
        ),
    )
    weight_memory: str | None = option(
        None,
        "Most memory for prepared weights, such as 600MB.",
        flags="--weight-memory",
        shown="no limit",
        setting=Setting(
            "--weight-memory", "Most memory for prepared weights, such as 600MB.", "no limit", clients=True
        ),
    )
    backend: str = option(
        "auto",
        "auto, cuda, metal, vulkan, cpu or reference.",
        flags="--backend",
        shown="auto",
        choices=("auto", "cuda", "metal", "vulkan", "cpu", "reference"),
        setting=Setting(
            "--backend",
            "What computes: cuda, metal, vulkan, cpu, reference, or auto, the fastest there is.",
            clients=True,
        ),
    )
    device: str | None = option(
        None,
        "cpu, cuda, metal or vulkan; one of several GPUs: cuda:N or vulkan:N, N from 0; or some: cuda:0,1.",
        flags="--device -dev",
        shown="auto",
        setting=Setting(
            "-dev --device",
            "cpu, cuda, metal or vulkan; one of several GPUs: cuda:N or vulkan:N, N from 0; or some: cuda:0,1.",
            "auto; replicas take turns",
            clients=True,
        ),
    )
    gpu_layers: int | str | None = option(
        None,
        "Layers on the GPU, the CPU has the rest: a number, all, or auto for as many as fit.",
        flags="--gpu-layers -ngl --n-gpu-layers",
        shown="auto",
        metavar="N",
        setting=Setting(
            "-ngl --gpu-layers --n-gpu-layers",
            "Layers on the GPU, the CPU has the rest: a number, all, or auto for as many as fit.",
            "auto",
            clients=True,
        ),
    )
    mmproj: str | None = option(
        None,
        "Projector file (mmproj) for image and audio input; none: text only.",
        flags="--mmproj -mm",
        shown="the one beside the model",
        metavar="FILE",
        setting=Setting(
            "-mm --mmproj",
            "Projector file (mmproj) of --model for image and audio input; none: text only, for all models.",
            "the one beside each model",
        ),
    )
    rope_scaling: str | None = option(
        None,
        "How positions beyond those of training are reached: none, linear or yarn.",
        flags="--rope-scaling",
        shown="as the file says",
        setting=Setting(
            "--rope-scaling", "How positions beyond those of training are reached: none, linear or yarn.", "the file's"
        ),
    )
    rope_scale: float | None = option(
        None,
        "How many times the positions of training.",
        flags="--rope-scale",
        shown="as the file says",
        setting=Setting("--rope-scale", "How many times the positions of training.", "the file's"),
    )
    rope_freq_base: float | None = option(
        None,
        "Base of the angles of positions.",
        flags="--rope-freq-base",
        shown="as the file says",
        setting=Setting("--rope-freq-base", "Base of the angles of positions.", "the file's"),
    )
    yarn_orig_ctx: int | None = option(
        None,
        "Positions of training, for yarn.",
        flags="--yarn-orig-ctx",
        shown="the model's context",
        low=1,
        setting=Setting("--yarn-orig-ctx", "Positions of training, for yarn.", "the model's context"),
    )
    stages: tuple[str, ...] = option(
        (),
        setting=Setting(
            "--stages",
            "HOST:PORT of `woolly stage` processes that hold the layers of --model in turn, separated by commas.",
            "none",
        ),
    )
    stage_token_file: Path | None = option(  # noqa: RUF009
        None, setting=Setting("--stage-token-file", "File with the token that the stages were started with.", "none")
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(EngineOptions):
    """The keyword arguments of `LLM`, with its names and defaults, and plain values as settings and JSON have them.

    The options here have another name in the server, llama.cpp's, or are made of several settings.
    """

    ctx: int | None = option(
        None,
        "Context in tokens.",
        flags="--ctx -c",
        shown="the model's, as memory allows",
        setting=Setting(
            "-c --ctx-size --ctx",
            "Tokens of prompt and answer together, per request.",
            "the model's, as memory allows",
            "ctx_size",
            clients=True,
        ),
        low=1,
    )
    kv_type: str | None = option(
        None,
        "Number type of the cache, of K and V both (llama.cpp's -ctk: K alone): f16, f32, q8_0 or q4; or two, as in"
        " q8_0/q4.",
        flags="--kv-type -ctk",
        shown="f16",
        setting=Setting(
            "-ctk --cache-type-k --kv-type",
            "Number type of the cache, of keys and values both (llama.cpp's -ctk: of keys alone): f16, f32, q8_0 or q4;"
            " or two, as in q8_0/q4.",
            "f16",
            "cache_type_k",
            True,
        ),
    )
    max_running: int | str | None = option(
        None,
        setting=Setting(
            "-np --parallel",
            "Most requests that run at once; others wait. auto: as many as the device gains by and the memory holds.",
            "auto",
            "parallel",
            True,
        ),
    )
    chunk: int | None = option(
        None,
        low=1,
        setting=Setting("-b --batch-size", "Most tokens of one step, up to 512.", "512", "batch_size", True),
    )
    speculation: str = option(
        "auto",
        "What guesses tokens ahead: a smaller model, an mtp- file, prompt_lookup, mtp (own block), mtp_lookup or none.",
        flags="--model-draft -md",
        shown="mtp, if the file has it",
        metavar="MODEL",
        setting=Setting(
            "-md --model-draft",
            "What guesses tokens ahead: a smaller model, prompt_lookup, mtp, mtp_lookup, none, or auto: mtp if the file"
            " has it.",
            name="model_draft",
        ),
    )
    draft_tokens: int = option(
        8,
        "Most tokens to guess ahead.",
        flags="--draft-max --draft",
        shown="8",
        low=1,
        setting=Setting("--draft-max --draft", "Most tokens to guess ahead.", name="draft_max"),
    )
    metadata: tuple[str, ...] = option(
        (),
        "Values in place of the file's: KEY=TYPE:VALUE, with commas between.",
        flags="--override-kv",
        shown="none",
        metavar="TEXT",
        setting=Setting(
            "--override-kv",
            "Values in place of the file's: KEY=TYPE:VALUE, with commas between.",
            "none",
            "override_kv",
        ),
    )
    adapters: tuple[str, ...] = option(())
    control_vectors: tuple[tuple[str, float], ...] = option(())
    control_vector_layers: tuple[int, int] | None = option(None)
    chat_template: str | None = option(None)
    preset: str | None = option(
        None,
        "Table of presets.toml; none: not even the model's own.",
        flags="--preset",
        shown="that of the model's name",
    )
    check_memory: bool = option(True)  # the server and its replicas count the memory of all models themselves


class LoadOptions(TypedDict, total=False):
    """Keywords of `LLM` for type checkers: a test checks that the names match the rows; types are wider."""

    backend: str
    device: str | None
    threads: int | None
    ctx: int | None
    kv_tokens: int | None
    weight_memory: int | str | None
    kv_type: str | None
    gpu_layers: int | str | None
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
    preset: str | None
    mmproj: str | os.PathLike[str] | None
    cache_disk: int | str | None
    cache_disk_folder: str | os.PathLike[str] | None
    stages: Sequence[str] | None
    stage_token_file: str | os.PathLike[str] | None
    check_memory: bool


def rows_of(options: type = ModelOptions) -> dict[str, Row]:
    """The rows of a class of options, by the keyword of LLM."""
    return _read(options)


@functools.cache
def _read(options: Any) -> dict[str, Row]:
    return {
        field.name: Row(field.name, str(field.type), field.default, **field.metadata["row"])
        for field in dataclasses.fields(options)
        if "row" in field.metadata
    }


def takes_options(init: Init) -> Init:
    """Shows the rows as keyword-only arguments of a function that takes `**options`: for help() and for checks."""
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
