"""Flags of Ollama's commands, and its environment variables with their equivalents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import ForeignFlag, harmless, rejected, rejected_switch, switch
from woolly.cli.parse.usage_errors import UsageError

_ANY_OBJECT = '{"type": "object"}'


def _format(value: str) -> Sequence[str]:
    return ("--json-schema", _ANY_OBJECT if value == "json" else value)


def _thinking(value: str) -> Sequence[str]:
    effort = {"true": "on", "false": "off", "on": "on", "off": "off"}.get(value.lower())
    if effort is not None:
        return ("--reasoning", effort)
    if value.lower() not in ("low", "medium", "high", "max"):
        raise UsageError(f"--think is {value!r}; expected true, false, low, medium or high")
    return ("--reasoning-effort", value.lower())


def _keep_alive(value: str) -> Sequence[str]:
    """Return the option for seconds, or a duration such as 5m or 1h30m; nothing is unloaded after a negative one."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
    if re.fullmatch(r"-(\d+(\.\d+)?(ms|[smh])?)+", value):
        return ("--keep-alive", "0")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|[smh])", value)
    if re.fullmatch(r"\d+(\.\d+)?", value):
        parts = [(value, "s")]
    elif "".join(number + unit for number, unit in parts) != value or not value:
        raise UsageError(f"--keepalive is {value!r}; expected a duration such as 5m, or -1 for no limit")
    seconds = sum(float(number) * units[unit] for number, unit in parts)
    if not seconds:
        raise UsageError(f"--keepalive is {value}; expected more, such as 1s, because --keep-alive 0 unloads no model")
    return ("--keep-alive", f"{seconds:g}")


OLLAMA = (
    ForeignFlag("--format", "--json-schema", into=_format, program="Ollama"),
    rejected("--format", "--json prints one JSON object, --json-schema enforces a schema", program="Ollama"),
    ForeignFlag("--think", "--reasoning", into=_thinking, bare="true", program="Ollama"),
    harmless("--keepalive", "the model is unloaded when the command ends", program="Ollama", commands="run chat embed"),
    ForeignFlag("--keepalive", "--keep-alive", into=_keep_alive, program="Ollama"),
    rejected_switch("--hidethinking", "--reasoning off answers without reasoning", program="Ollama"),
    switch("--nowordwrap", "lines are not wrapped", done="on", program="Ollama"),
    switch("--insecure", "models are downloaded over HTTPS only", program="Ollama"),
)

# What to use instead of Ollama's variables, which belong to a server that may run on the same machine.
OLLAMA_VARIABLES = {
    "OLLAMA_CONTEXT_LENGTH": "WOOLLY_CTX_SIZE",
    "OLLAMA_DEBUG": "WOOLLY_LOG_LEVEL=debug",
    "OLLAMA_FLASH_ATTENTION": "",
    "OLLAMA_HOST": "WOOLLY_HOST and WOOLLY_PORT",
    "OLLAMA_KEEP_ALIVE": "WOOLLY_KEEP_ALIVE",
    "OLLAMA_KV_CACHE_TYPE": "WOOLLY_CACHE_TYPE_K",
    "OLLAMA_LOAD_TIMEOUT": "WOOLLY_LOAD_WAIT",
    "OLLAMA_MAX_LOADED_MODELS": "WOOLLY_MODELS_MAX",
    "OLLAMA_MAX_QUEUE": "WOOLLY_MAX_QUEUE",
    "OLLAMA_NUM_PARALLEL": "WOOLLY_PARALLEL",
    "OLLAMA_ORIGINS": "WOOLLY_CORS_ORIGINS",
    "OLLAMA_GPU_OVERHEAD": "WOOLLY_WEIGHT_MEMORY",
    "OLLAMA_LLM_LIBRARY": "WOOLLY_BACKEND",
    "OLLAMA_SCHED_SPREAD": "WOOLLY_DEVICE=cuda:0,1",
    "OLLAMA_MULTIUSER_CACHE": "WOOLLY_SHARE_PREFIXES",
}
