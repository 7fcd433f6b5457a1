"""Flags of llama-server."""

from __future__ import annotations

from collections.abc import Sequence

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

_LOGGED = "log lines always have a time and a level, and no colors"
_CORS = "CORS replies list the methods and headers of the API, without credentials"
_QUIET = "use --json for timings, `woolly why` to explain them, or --log-level debug of `woolly serve`"

# llama.cpp's verbosity, from generic output to debug.
_LEVELS = ("error", "error", "warning", "info", "info", "debug")


def _level(value: str) -> Sequence[str]:
    if not value.lstrip("-").isdigit():
        raise UsageError(f"-lv is {value!r}; expected a number from 0 (errors) to 5 (debug)")
    return ("--log-level", _LEVELS[min(max(int(value), 0), len(_LEVELS) - 1)])


def _pinned(repo: str, port: int, *more: str) -> Sequence[str]:
    """Return the words of one of llama.cpp's flags for a certain model."""
    return ("--hf-repo", f"ggml-org/{repo}", "--port", str(port), *more)


def _model(names: str, repo: str, port: int, *more: str) -> ForeignFlag:
    replacement = _pinned(repo, port, *more)
    return words(names, *replacement, commands="serve", noted=f"{names} is read as {' '.join(replacement)}")


_OSS = ("--ctx", "131072", "--temp", "1", "--top-p", "1", "--top-k", "0", "--min-p", "0.01")

SERVER = (
    # Logs.
    words("--log-disable", "--log-level", "off"),
    ForeignFlag("-lv --verbosity --log-verbosity", "--log-level", into=_level, is_weak=True),
    switch("--log-disable", done="on"),
    harmless("-lv --verbosity --log-verbosity", _QUIET, done="0 1 2 3"),
    harmless("--log-file", "only `woolly serve` writes a log"),
    switch("-v --verbose --log-verbose", _QUIET),
    switch("--log-prefix --log-timestamps", _LOGGED, off_names="--no-log-prefix --no-log-timestamps", done="on"),
    harmless("--log-colors", _LOGGED, done="off auto", bare="on"),
    rejected("--log-prompts-dir", "--log-prompts of `woolly serve` writes prompts and answers to the log"),
    # Network and pages.
    harmless("--sse-ping-interval", "streams send a keep-alive comment every 15 seconds"),
    rejected_switch("--reuse-port", "--replicas N runs several processes behind one port"),
    rejected("--cors-methods --cors-headers", _CORS, done="* get,post,delete,options"),
    rejected_switch("--cors-credentials", _CORS, off_names="--no-cors-credentials", done="off"),
    harmless(
        "--ui-config --webui-config --ui-config-file --webui-config-file", "change these settings on the chat page"
    ),
    rejected_switch(
        "--ui-mcp-proxy --webui-mcp-proxy",
        "the server forwards no requests to other servers",
        off_names="--no-ui-mcp-proxy --no-webui-mcp-proxy",
        done="off",
    ),
    rejected("--tools --tools-runtime", "the server has no built-in tools; --mcp FILE adds tools for the chat page"),
    alias("--mcp-servers-config", "--mcp"),
    rejected("--mcp-servers-json", "--mcp takes a file"),
    rejected_switch(
        "-ag --agent",
        "the server has no built-in tools; --mcp FILE adds tools for the chat page",
        off_names="-no-ag --no-agent",
        done="off",
    ),
    rejected("--media-path", "the server does not read local files for clients; send images in the request"),
    # Models. Files determine whether a model computes embeddings or scores, so no flag is needed.
    harmless(
        "-embd --embeddings", "the model file determines whether it is an embedding model", done="0", commands="bench"
    ),
    switch("--embedding --embeddings --rerank --reranking", done="on"),
    rejected("--models-preset", "use presets.toml in the models folder"),
    rejected("--embd-normalize", "requests set embd_normalize", done="2", commands="serve"),
    rejected_switch("--lora-init-without-apply", "POST /lora-adapters with a scale of 0 turns an adapter off"),
    rejected_switch("--spm-infill", "the model file contains the tokens for fill-in-the-middle"),
    switch("--models-autoload", "give --no-models-autoload to `woolly serve`", done="on"),
    rejected_switch(
        "--no-prefill-assistant",
        "a request can start a new turn with continue_final_message: false",
    ),
    switch("--prefill-assistant", done="on"),
    _model("--embd-gemma-default", "embeddinggemma-300M-qat-q4_0-GGUF", 8011),
    _model("--fim-qwen-1.5b-default", "Qwen2.5-Coder-1.5B-Q8_0-GGUF", 8012),
    _model("--fim-qwen-3b-default", "Qwen2.5-Coder-3B-Q8_0-GGUF", 8012),
    _model("--fim-qwen-7b-default", "Qwen2.5-Coder-7B-Q8_0-GGUF", 8012),
    _model("--fim-qwen-30b-default", "Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", 8012),
    _model("--fim-qwen-7b-spec", "Qwen2.5-Coder-7B-Q8_0-GGUF", 8012, "--model-draft", "prompt_lookup"),
    _model("--fim-qwen-14b-spec", "Qwen2.5-Coder-14B-Q8_0-GGUF", 8012, "--model-draft", "prompt_lookup"),
    _model("--gpt-oss-20b-default", "gpt-oss-20b-GGUF", 8013, *_OSS),
    _model("--gpt-oss-120b-default", "gpt-oss-120b-GGUF", 8013, *_OSS),
    _model("--vision-gemma-4b-default", "gemma-3-4b-it-qat-GGUF", 8014),
    _model("--vision-gemma-12b-default", "gemma-3-12b-it-qat-GGUF", 8014),
    rejected_switch("--embd-gemma-default", "use `woolly embed embeddinggemma TEXT`"),
    rejected_switch(
        "--gpt-oss-20b-default --gpt-oss-120b-default",
        "name the model, as in -hf ggml-org/gpt-oss-20b-GGUF --temp 1 --top-p 1 --top-k 0 --min-p 0.01",
    ),
    rejected_switch(
        "--vision-gemma-4b-default --vision-gemma-12b-default",
        "name the model, as in -hf ggml-org/gemma-3-4b-it-qat-GGUF",
    ),
)
