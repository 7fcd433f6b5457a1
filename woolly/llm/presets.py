"""Presets: load options, sampling defaults and system prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woolly.chat.message import Message
from woolly.errors import RequestError, StoreError
from woolly.llm.model_options import ModelOptions, rows_of
from woolly.sampling import SamplingParams, options_of
from woolly.sampling.unknown_arguments import check_keywords

if TYPE_CHECKING:
    from woolly.chat import ChatRequest
    from woolly.store import Preset

# Maps keys of presets.toml to keywords of LLM. In a request, `adapters` has scales instead of files.
LOADING_KEYS: Mapping[str, str] = {
    "kv_type": "kv_type",
    "kv_tokens": "kv_tokens",
    "weight_memory": "weight_memory",
    "threads": "threads",
    "backend": "backend",
    "device": "device",
    "gpu_layers": "gpu_layers",
    "n_cpu_moe": "n_cpu_moe",
    "draft": "speculation",
    "draft_tokens": "draft_tokens",
    "lora": "adapters",
}

# Server keys, which do not change answers; the library ignores them.
SERVER_KEYS = ("pin", "keep_alive", "reasoning")

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "str": (str,), "int | str": (int, str)}
_WORDS = {int: "an integer", str: "a string"}


def defaults_of(preset: Preset | None, base: SamplingParams) -> SamplingParams:
    """Return the default sampling parameters; raise StoreError for an invalid one in the preset."""
    others = (*LOADING_KEYS, *SERVER_KEYS)
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (() if preset is None else preset.sampling.items())
        if name not in others
    }
    if preset is None or not given:
        return base
    try:
        check_keywords(f"[{preset.name}]", given, ["system", "ctx", *others, *options_of(SamplingParams)])
        return replace(base, **given)
    except RequestError as error:
        raise StoreError(f"{preset.file}: {error}") from error


def with_system(preset: Preset | None, chat: ChatRequest) -> ChatRequest:
    """Return the conversation with the preset's system prompt, unless it already has one."""
    if preset is None or preset.system is None:
        return chat
    if any(message.role in ("system", "developer") for message in chat.messages):
        return chat
    return replace(chat, messages=(Message("system", preset.system), *chat.messages))


def load_of(preset: Preset | None) -> dict[str, Any]:
    """Return the LLM keywords of a preset, including its context. Raise StoreError for an invalid value."""
    if preset is None:
        return {}
    found: dict[str, Any] = {} if preset.ctx is None else {"ctx": preset.ctx}
    for key, keyword in LOADING_KEYS.items():
        if key in preset.sampling:
            value = preset.sampling[key]
            found[keyword] = _files(preset, value) if key == "lora" else _checked(preset, key, keyword, value)
    return found


def with_load(options: ModelOptions, preset: Preset | None, *, replaces: bool = False) -> ModelOptions:
    """Return the options with unset options taken from the preset; with `replaces`, the preset wins."""
    rows, load = rows_of(), load_of(preset)
    kept = {name: value for name, value in load.items() if replaces or getattr(options, name) == rows[name].default}
    return replace(options, **kept)


def _checked(preset: Preset, key: str, keyword: str, value: Any) -> Any:
    row = rows_of()[keyword]
    types = _TYPES[row.type.removesuffix(" | None")]
    if isinstance(value, bool) or not isinstance(value, types):
        wanted = " or ".join(_WORDS[one] for one in types)
        raise StoreError(f"{preset.file}: {key} of [{preset.name}] is {value!r}; expected {wanted}")
    if row.choices and value not in row.choices:
        raise StoreError(
            f"{preset.file}: {key} of [{preset.name}] is {value!r}; choose one of: {', '.join(row.choices)}"
        )
    if row.low is not None and isinstance(value, int) and value < row.low:
        raise StoreError(f"{preset.file}: {key} of [{preset.name}] is {value}; expected at least {row.low}")
    return value


def _files(preset: Preset, value: Any) -> tuple[str, ...]:
    """Return the adapter files. Relative paths are relative to the presets file."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
        raise StoreError(f"{preset.file}: lora of [{preset.name}] is {value!r}; expected a file or a list of files")
    return tuple(str(preset.file.parent / Path(one).expanduser()) for one in values)
