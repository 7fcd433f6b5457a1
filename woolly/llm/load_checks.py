"""Validation of load options, and the chat template of a model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from woolly.chat import Modalities
from woolly.chat.template_format import use_tool_format
from woolly.engine import multimodal
from woolly.errors import RequestError
from woolly.gguf.overlay import Value, parse_overrides
from woolly.runtime import parse_max_running
from woolly.templates import ChatTemplate

if TYPE_CHECKING:
    from woolly.engine import LoadedModel
    from woolly.llm.model_options import ModelOptions
    from woolly.runtime import Program

_PLAIN = "{{ messages | map(attribute='content') | join('\n') }}{{ eos_token }}"
_SCALINGS = ("none", "linear", "yarn")
_COUNTS = (
    "draft_tokens",
    "chunk",
    "kv_tokens",
)  # other numbers are validated where their limits are known

_ITL_TARGET_CPU, _ITL_TARGET_GPU = 250, 50  # ms


def check_load_options(given: ModelOptions) -> None:
    """Raise RequestError for an empty template or a count below 1."""
    for name in _COUNTS:
        value = getattr(given, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{name} is {value!r}; expected an integer of at least 1", field=name)
    target = given.itl_target
    if target is not None and (isinstance(target, bool) or not isinstance(target, int) or target < 0):
        raise RequestError(f"itl_target is {target!r}; expected milliseconds, or 0 for no target", field="itl_target")
    parse_max_running("max_running", given.max_running)
    template = given.chat_template
    if template is not None and not (isinstance(template, str) and template.strip()):
        raise RequestError("chat_template is empty; expected a Jinja template", field="chat_template")


def itl_target_of(given: int | None, program: Program) -> float | None:
    """Return the target inter-token latency in seconds, or None for no target."""
    if given is None:
        given = _ITL_TARGET_GPU if program.about.device else _ITL_TARGET_CPU
    return given / 1000 if given else None


def load_template(loaded: LoadedModel, chat_template: str | None, tool_format: str | None = None) -> ChatTemplate:
    """Return the given chat template, or else the template of the file.

    `tool_format` is a file with the tool call format, which replaces the format derived from the template.
    """
    ends = (loaded.tokenizer.bos_id, loaded.tokenizer.eos_id)
    bos, eos = ("" if token is None else loaded.tokenizer.token_text(token) for token in ends)
    metadata = loaded.file.metadata if chat_template is None else {"tokenizer.chat_template": chat_template}
    if loaded.source is not None and "tokenizer.chat_template" not in metadata:
        metadata = {"tokenizer.chat_template": _PLAIN}  # an encoder takes a plain text, not a conversation
    template = ChatTemplate.from_metadata(metadata, bos_token=bos, eos_token=eos)
    if tool_format is not None:
        use_tool_format(template, tool_format)
    return template


def load_modalities(loaded: LoadedModel, ctx: int) -> Modalities | None:
    """Return the modalities of a model, from its projector or audio encoder; None for text only."""
    source = loaded.source
    tower = source if source is not None and isinstance(source, multimodal.AudioEncoder) else loaded.tower
    if tower is None:
        return None
    return Modalities(tower.vision, audio=tower.audio, ctx=ctx, transcribes=tower is loaded.source)


def overrides_of(given: ModelOptions) -> dict[str, Value]:
    """Return the metadata overrides of the options by key; raise RequestError for invalid values."""
    found = parse_overrides(given.metadata)
    scaling, scale = given.rope_scaling, _positive("rope_scale", given.rope_scale)
    if scaling is not None and scaling not in _SCALINGS:
        raise RequestError(
            f"rope_scaling is {str(scaling)[:40]!r}; choose one of: {', '.join(_SCALINGS)}", field="rope_scaling"
        )
    if scale is not None and scaling == "none":
        raise RequestError("rope_scale has no effect with rope_scaling 'none'; remove one of them", field="rope_scale")
    named: dict[str, Any] = {
        "*.rope.scaling.type": scaling,
        "*.rope.scaling.factor": scale,
        "*.rope.freq_base": _positive("rope_freq_base", given.rope_freq_base),
        "*.rope.scaling.original_context_length": given.yarn_orig_ctx,
    }
    return found | {key: value for key, value in named.items() if value is not None}


def _positive(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value <= 0:
        raise RequestError(f"{name} is {value!r}; expected a number above 0", field=name)
    return float(value)
