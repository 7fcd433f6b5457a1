"""Opening: estimates and checks a model first, then loads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from woolly.llm import LLM
from woolly.runtime import Options, parse_size
from woolly.serving.loading.memory import Estimate, estimate
from woolly.serving.loading.options import ModelOptions
from woolly.serving.settings import Settings
from woolly.store import find_preset, resolve
from woolly.templates import ChatTemplate

__all__ = ["examine", "open_model", "options_for"]


def options_for(path: Path, settings: Settings) -> ModelOptions:
    """Returns how a model is opened: by the settings, and by its preset for a context that they leave open."""
    options = settings.model_options()
    own = options.adapters or options.control_vectors or options.stages
    if own and settings.model is not None and resolve(settings.model) != path:
        options = replace(
            options, adapters=(), control_vectors=(), control_vector_layers=None, stages=()
        )  # they are for that model alone
    preset = find_preset(path)
    return options if preset is None or options.ctx is not None else replace(options, ctx=preset.ctx)


def examine(path: Path, options: ModelOptions) -> Estimate:
    """Returns what the model would take.

    Raises the errors of the file and of the options, before another model is unloaded for this one.
    """
    if options.chat_template is not None:
        ChatTemplate(options.chat_template)
    Options(options.threads, parse_size("weight_memory", options.weight_memory), options.kv_type)
    return estimate(path, options)


def open_model(path: Path, options: ModelOptions) -> LLM:
    """Returns the model, ready to answer; takes as long as reading its file."""
    return LLM(path, **vars(options))
