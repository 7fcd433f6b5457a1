"""Flags of Ollama's commands, and its environment variables with their equivalents."""

from __future__ import annotations

from collections.abc import Sequence

from woolly.cli.parse.flags.foreign_flag import ForeignFlag, alias, harmless, rejected, rejected_switch, switch
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


OLLAMA = (
    ForeignFlag("--format", "--json-schema", into=_format, program="Ollama"),
    rejected("--format", "--json prints one JSON object, --json-schema enforces a schema", program="Ollama"),
    ForeignFlag("--think", "--reasoning", into=_thinking, bare="true", program="Ollama"),
    harmless("--keepalive", "a model is unloaded when the command ends", program="Ollama", commands="run chat embed"),
    alias("--keepalive", "--keep-alive", program="Ollama"),
    rejected_switch("--hidethinking", "--reasoning off answers without reasoning", program="Ollama"),
    switch("--nowordwrap", "lines are not wrapped", done="on", program="Ollama"),
    switch("--insecure", "models are fetched over HTTPS", program="Ollama"),
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
