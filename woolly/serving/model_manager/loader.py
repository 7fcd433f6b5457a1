"""Checks the memory and options of a model, then loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from woolly.engine.loading.memory_estimate import MemoryEstimate
from woolly.errors import RequestError, WoollyError
from woolly.llm import LLM
from woolly.llm.model_options import ModelOptions, rows_of
from woolly.llm.presets import with_load
from woolly.runtime import Options, parse_size
from woolly.runtime.options import parse_cpu_moe
from woolly.serving.errors import ApiError
from woolly.serving.model_manager.memory_check import estimate
from woolly.serving.model_manager.modalities import configured_mmproj
from woolly.serving.model_manager.model_info import ModelInfo
from woolly.serving.observability.logs import log
from woolly.serving.settings.configuration import checked_value
from woolly.serving.settings.table import Settings
from woolly.store import Preset, find_preset, resolve
from woolly.templates import ChatTemplate

# Settings that clients may set for a model, with llama.cpp's alternative names of two of them. Clients may not set the
# template, because it would affect all other clients.
_OF_A_MODEL = (
    *(row.setting_name for row in rows_of().values() if row.setting is not None and row.setting.clients),
    *("ubatch_size", "cache_type_v"),
)


def options_for(path: Path, settings: Settings, loading: Preset | None = None) -> ModelOptions:
    """Return the loading options of a model from the settings, its preset and the derived model."""
    options = settings.model_options()
    own = options.adapters or options.control_vectors or options.stages
    if own and settings.model is not None and resolve(settings.model) != path:
        options = replace(
            options, adapters=(), control_vectors=(), control_vector_layers=None, stages=()
        )  # only for --model
    if options.mmproj is not None:
        options = replace(options, mmproj=configured_mmproj(path, settings))
    return with_load(with_load(options, find_preset(path)), loading, replaces=True)


def has_scales(options: ModelOptions, settings: Settings, loading: Preset | None) -> bool:
    """Return True for adapters of --lora and --lora-scaled, False for adapters of a preset or name."""
    is_own = loading is not None and "lora" in loading.sampling
    return bool(options.adapters) and not is_own and options.adapters == settings.model_options().adapters


def with_client_config(settings: Settings, config: Mapping[str, Any]) -> Settings:
    """Return the settings with a client's changes. Raises ApiError 400 for settings that clients may not change."""
    unknown = sorted(set(config) - set(_OF_A_MODEL))
    if unknown:
        raise ApiError(
            400,
            "invalid_request",
            f"config has unknown settings {', '.join(unknown)}; expected {', '.join(_OF_A_MODEL)}",
            param="config",
        )
    try:
        values = {name: checked_value(f"config.{name}", name, value) for name, value in config.items()}
        return replace(settings, **values)
    except RequestError as error:
        raise ApiError(400, "invalid_request", str(error), param="config") from None


def estimate_model(path: Path, options: ModelOptions) -> MemoryEstimate:
    """Return the estimated memory of the model.

    Raises errors about the file and the options before another model is unloaded.
    """
    if options.chat_template is not None:
        ChatTemplate(options.chat_template)
    weight_memory = parse_size("weight_memory", options.weight_memory)
    Options(options.threads, weight_memory, options.kv_type, device=options.device, gpu_layers=options.gpu_layers)
    parse_cpu_moe(options.n_cpu_moe)
    return estimate(path, options)


def open_model(path: Path, options: ModelOptions) -> LLM:
    """Load a model; takes as long as reading its file."""
    return LLM(path, **vars(options) | {"check_memory": False})  # checked before


def warn_missing_template(name: str, llm: LLM) -> None:
    """Log a warning if a text-generation model has no chat template, because base models cannot answer chats."""
    if llm.plan.result == "logits" and llm.template.is_fallback:
        reason = "the file has no chat template, so chats use ChatML; use /v1/completions for base models"
        log.warning("chat template assumed", extra={"model": name, "reason": reason})


def log_disk_cache_error(name: str, llm: LLM) -> None:
    """Log errors of writing the disk cache of a closed model."""
    stats = llm.known_disk_stats
    if stats is not None and stats.refusal is not None:
        log.warning("pages not written", extra={"model": name, "files": stats.n_files, "reason": stats.refusal})


def load_error(info: ModelInfo, error: Exception) -> ApiError:
    """Return the error for a client whose model could not be loaded."""
    if isinstance(error, WoollyError):
        message = str(error).replace(str(info.path), info.path.name)
        return ApiError(422, "model_not_loadable", message, param="model")
    if isinstance(error, MemoryError):
        return ApiError(503, "insufficient_memory", f"{info.name} does not fit into memory")
    return ApiError(500, "internal_error", f"{info.name} could not be loaded; see the server's log")
